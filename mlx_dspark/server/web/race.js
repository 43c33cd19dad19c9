/*
 * The race: one prompt, drafted and then plain, with the same seed; then the verdict on texts and speeds.
 * The server decodes one request at a time, so the two run in turn; a replay shows them side by side by their own
 * clocks, each from its first token. Speeds are the server's measurements.
 */

import { stream } from "./api.js";
import { Answer } from "./answer.js";
import { announce, prompt } from "./dom.js";
import { shown } from "./meter.js";
import { fields } from "./settings.js";

const byId = (id) => document.getElementById(id);

/** One side: its answer, and when which of its events came. */
class Lane {
  constructor(title, own) {
    this.own = own; // the request's fields that make the difference
    this.root = byId("lane-template").content.firstElementChild.cloneNode(true);
    this.root.querySelector("h2").textContent = title;
    this.slot = this.root.querySelector(".slot");
    this.clear();
  }

  clear() {
    this.answer = null;
    this.events = [];
    this.first = null;
    this.slot.replaceChildren();
    this.pace(0);
  }

  begin(now) {
    this.answer = new Answer(this.slot, now);
  }

  record(event) {
    const now = performance.now();
    if (event.type === "round") this.first ??= now;
    this.events.push({ event, at: this.first === null ? 0 : now - this.first });
  }

  get speed() {
    return this.answer?.meter.speed ?? null;
  }

  get complete() {
    return Boolean(this.answer?.reason);
  }

  /** `most` is the faster lane's speed. */
  pace(most) {
    this.root.querySelector(".pace-number").textContent = shown(this.speed, 1);
    this.root.querySelector(".track i").style.width = this.speed ? `${(100 * this.speed) / most}%` : "0";
  }
}

export class Race {
  constructor(refused) {
    this.refused = refused;
    this.lanes = [new Lane("Drafted", {}), new Lane("Plain", { mode: "baseline" })];
    this.running = null;
    byId("lanes").append(...this.lanes.map((lane) => lane.root));
    byId("lanes").addEventListener("again", () => byId("race-form").requestSubmit());
    prompt(byId("race-form"), byId("race-prompt"), (text) => this.start(text), true);
    byId("race-stop").addEventListener("click", () => this.stop());
    byId("race-replay").addEventListener("click", () => this.replay());
  }

  /** Where the server cannot draft there is nothing to race. */
  forbid(reason) {
    byId("race-start").disabled = true;
    this.say("neutral", reason, "");
  }

  stop() {
    this.running?.abort();
  }

  start(text) {
    const more = fields();
    if (!more || this.running || byId("race-start").disabled) return false;
    delete more.mode;
    if (!more.max_draft) delete more.max_draft;
    more.seed ??= Math.floor(Math.random() * 2 ** 31);
    this.run({ messages: [{ role: "user", content: text }], ...more });
    return true;
  }

  async run(body) {
    this.busy(new AbortController());
    byId("verdict").hidden = true;
    for (const lane of this.lanes) lane.clear();
    const { signal } = this.running;
    announce("The race is on.");
    for (const lane of this.lanes) if (!(await this.runLane(lane, body, signal))) break;
    this.busy(null);
    if (this.lanes.every((lane) => lane.complete)) this.judge();
  }

  /** True if the lane came to its end. */
  async runLane(lane, body, signal) {
    lane.begin(() => performance.now());
    lane.root.classList.add("now");
    try {
      for await (const event of stream({ ...body, ...lane.own }, signal)) {
        lane.record(event);
        lane.answer.feed(event);
        this.pace();
      }
    } catch (error) {
      lane.answer.close(signal.aborted ? null : error);
      if (!signal.aborted) this.refused(error);
    } finally {
      lane.root.classList.remove("now");
    }
    return lane.complete;
  }

  pace() {
    const most = Math.max(...this.lanes.map((lane) => lane.speed ?? 0));
    for (const lane of this.lanes) lane.pace(most);
  }

  judge() {
    const [drafted, plain] = this.lanes.map((lane) => lane.answer);
    const at = difference(whole(drafted), whole(plain));
    if (at === null && drafted.meter.tokens === plain.meter.tokens) {
      const size = [...whole(drafted)].length;
      this.say(
        "equal",
        `Equal: the same ${plain.meter.tokens} tokens, ${size} characters, character for character.`,
        speeds(drafted.meter, plain.meter),
      );
    } else {
      const where = at === null ? "in their number of tokens" : `from character ${at + 1} on`;
      this.say("different", `Different ${where}. That must never happen: please report it, with the prompt.`, "");
    }
  }

  say(kind, text, speed) {
    const verdict = byId("verdict");
    verdict.hidden = false;
    verdict.dataset.kind = kind;
    verdict.querySelector(".verdict-text").textContent = text;
    verdict.querySelector(".verdict-speed").textContent = speed;
    announce(`${text} ${speed}`);
  }

  /** Both again from their records, started together at their first tokens. */
  async replay() {
    this.busy(new AbortController());
    const { signal } = this.running;
    const began = performance.now();
    for (const lane of this.lanes) lane.begin(() => performance.now());
    await Promise.all(this.lanes.map((lane) => this.replayLane(lane, began, signal)));
    this.busy(null);
  }

  /** Once stopped, the rest is shown at once. */
  async replayLane(lane, began, signal) {
    for (const { event, at } of lane.events) {
      const left = began + at - performance.now();
      if (left > 4 && !signal.aborted) await pause(left, signal);
      lane.answer.feed(event);
      this.pace();
    }
  }

  busy(controller) {
    const had = document.activeElement;
    this.running = controller;
    byId("race-start").hidden = Boolean(controller);
    byId("race-stop").hidden = !controller;
    byId("race-replay").hidden = Boolean(controller) || !this.lanes.every((lane) => lane.complete);
    if (had === byId("race-stop")) byId("race-prompt").focus();
  }
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

function whole(answer) {
  return answer.texts.reasoning + answer.texts.text;
}

/** Index of the first UTF-16 unit where two texts differ, or null. */
function difference(a, b) {
  if (a === b) return null;
  let at = 0;
  while (a[at] === b[at]) at += 1;
  return at;
}

function speeds(drafted, plain) {
  if (!drafted.speed || !plain.speed) return "Too short to time.";
  const times = `${shown(drafted.seconds, 2)} s against ${shown(plain.seconds, 2)} s after the first token`;
  const ratio = drafted.speed / plain.speed;
  return `Drafted ran at ${ratio.toFixed(2)}× the speed of plain: ${times}${ratio < 1 ? ". Drafting lost here." : "."}`;
}
