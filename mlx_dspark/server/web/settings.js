/*
 * The settings form <-> fields of a request. Knows the form; knows no network.
 * A field left empty is not sent: the server's or the model's own default holds.
 */

const form = document.getElementById("settings-form");
const problem = document.getElementById("settings-problem");
const NUMBERS = ["max_tokens", "temperature", "seed", "max_draft"];

/** The fields to send, or null where a setting is out of range; the form then says which and opens. */
export function fields() {
  if (!valid()) {
    document.getElementById("settings").open = true;
    form.querySelector(":invalid").focus();
    return null;
  }
  const sent = {};
  for (const name of NUMBERS) if (form.elements[name].value !== "") sent[name] = form.elements[name].valueAsNumber;
  if (form.elements.mode.value === "baseline") sent.mode = "baseline";
  if (!form.elements.thinking.checked) sent.chat_template_kwargs = { enable_thinking: false };
  return sent;
}

/** Keep the form's own effects going: messages, colours, closing by Escape or a click elsewhere. */
export function start() {
  const panel = document.getElementById("settings");
  form.addEventListener("input", () => {
    valid();
    document.body.classList.toggle("colourless", !form.elements.colours.checked);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  panel.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !panel.open) return;
    event.stopPropagation();
    panel.open = false;
    panel.querySelector("summary").focus();
  });
  document.addEventListener("pointerdown", (event) => {
    if (!panel.contains(event.target)) panel.open = false;
  });
}

function valid() {
  const wrong = form.querySelector("input:invalid");
  for (const input of form.querySelectorAll("input")) input.setAttribute("aria-invalid", String(input === wrong));
  problem.textContent = wrong ? `${wrong.labels[0].textContent.trim()}: ${wrong.validationMessage}` : "";
  return !wrong;
}
