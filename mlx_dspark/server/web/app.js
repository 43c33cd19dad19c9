/*
 * Puts the page together: views by the address's #, the server's line, the key dialog, Escape.
 */

import { health, setKey } from "./api.js";
import { Chat } from "./chat.js";
import { samples } from "./dom.js";
import { Race } from "./race.js";
import { start as startSettings } from "./settings.js";

const byId = (id) => document.getElementById(id);
const VIEWS = ["chat", "race"];

function view() {
  const chosen = VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : VIEWS[0];
  for (const name of VIEWS) byId(`${name}-view`).hidden = name !== chosen;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === chosen) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!matchMedia("(pointer: coarse)").matches) byId(`${chosen}-prompt`).focus({ preventScroll: true }); // no keyboard on phones
}

/** An error a view met: a missing key is asked for. */
function refused(error) {
  if (error.status !== 401) return;
  byId("key").value = "";
  byId("key-dialog").showModal();
}

function keyDialog() {
  const dialog = byId("key-dialog");
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(byId("key").value);
    byId("key").value = "";
    dialog.close();
  });
  byId("key-cancel").addEventListener("click", () => dialog.close());
}

async function serverLine(race) {
  const line = byId("server");
  try {
    const { model, drafter, mode, device, exact, context_window: room, version } = await health();
    const guesses = drafter ? `drafter ${name(drafter)}` : mode === "baseline" ? "no drafter" : mode;
    line.textContent = `${name(model)} · ${guesses}`;
    line.title = `mlx-dspark ${version}, ${device}, ${room} tokens of context`;
    if (!exact) line.textContent += " · not exact on this device";
    if (mode === "baseline") race.forbid("This server has no drafter, so there is nothing to race.");
  } catch (error) {
    line.textContent = error.message;
  }
}

/** A model's name without its folders. */
function name(path) {
  return path.split(/[/\\]/).filter(Boolean).pop() ?? path;
}

startSettings();
keyDialog();
for (const list of document.querySelectorAll(".samples")) samples(list);
const chat = new Chat(refused);
const race = new Race(refused);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || byId("key-dialog").open) return;
  chat.stop();
  race.stop();
});
addEventListener("hashchange", view);
view();
serverLine(race);
