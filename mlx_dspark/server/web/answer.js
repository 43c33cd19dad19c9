/*
 * One answer on the page: thinking folded away, coloured tokens, figures, and a note where something went wrong.
 * Fed with the events of api.js. Knows the DOM; knows no network and no conversation.
 */

import { Meter, shown } from "./meter.js";
import { TokenText } from "./tokens.js";

const ORIGINS = ["drafted", "corrected", "bonus", "plain"];

export class Answer {
  /** `now` tells milliseconds; a replay brings its own. */
  constructor(slot, now = () => performance.now()) {
    const template = document.getElementById("answer-template");
    this.root = template.content.firstElementChild.cloneNode(true);
    slot.replaceChildren(this.root);
    this.part = (selector) => this.root.querySelector(selector);
    this.views = { reasoning: new TokenText(this.part(".reasoning")), text: new TokenText(this.part(".said")) };
    this.texts = { reasoning: "", text: "" };
    this.meter = new Meter();
    this.now = now;
    this.reason = null;
    this.thinkingTokens = 0;
    this.touched = false;
    this.part("summary").addEventListener("click", () => (this.touched = true));
    this.part(".again").addEventListener("click", () => this.root.dispatchEvent(new Event("again", { bubbles: true })));
    this.root.setAttribute("aria-busy", "true");
    this.meter.start(now());
    this.wait("Waiting for the server");
  }

  /** Show one event. */
  feed(event) {
    if (event.type === "begun") this.wait("Reading the prompt");
    if (event.type === "text") this.texts[event.kind] += event.text;
    if (event.type === "round") this.round(event);
    if (event.type === "ended") this.end(event);
  }

  /** The answer is over without its end: stopped by the reader (no error), or failed. */
  close(error = null) {
    this.settle();
    if (error) this.note("bad", error.message, true);
    else this.note("calm", "Stopped.", this.empty);
  }

  get empty() {
    return !this.texts.text && !this.texts.reasoning;
  }

  get text() {
    return this.texts.text;
  }

  /** The answer as a message of the conversation. */
  get message() {
    const { text, reasoning } = this.texts;
    return { role: "assistant", content: text, ...(reasoning ? { reasoning_content: reasoning } : {}) };
  }

  round(event) {
    this.meter.round(event, this.now());
    for (const [kind, text, origin] of event.tokens) {
      this.show(kind);
      this.views[kind].push(text, ORIGINS.includes(origin) ? origin : "plain");
      if (kind === "reasoning") this.thinkingTokens += 1;
    }
    this.figures();
  }

  end({ reason, measured }) {
    this.reason = reason;
    this.meter.end(measured);
    this.settle();
    if (reason === "length") this.note("calm", `Cut at ${this.meter.tokens} tokens; the limit is under Settings.`, false);
  }

  /** What was said and not yet shown (text without a round of its own), and the last figures. */
  settle() {
    for (const [kind, view] of Object.entries(this.views)) {
      const rest = this.texts[kind].slice(view.length);
      if (!rest) continue;
      this.show(kind);
      view.push(rest, "plain");
    }
    this.part(".waiting").hidden = true;
    this.root.setAttribute("aria-busy", "false");
    if (!this.part(".thinking").hidden) this.title(`Thought for ${this.thinkingTokens} tokens`);
    this.figures();
  }

  show(kind) {
    const thinking = this.part(".thinking");
    this.part(".waiting").hidden = true;
    if (kind === "reasoning" && thinking.hidden) {
      thinking.hidden = false;
      thinking.open = true;
    }
    if (kind === "text" && !this.saying) {
      this.saying = true;
      if (!this.touched) thinking.open = false;
      this.title(`Thought for ${this.thinkingTokens} tokens`);
    }
  }

  title(text) {
    this.part(".thinking-title").textContent = text;
  }

  wait(text) {
    this.part(".waiting-text").textContent = text;
  }

  note(kind, text, again) {
    const note = this.part(".note");
    note.dataset.kind = kind;
    note.setAttribute("role", kind === "bad" ? "alert" : "note");
    note.hidden = false;
    this.part(".note-text").textContent = text;
    this.part(".again").hidden = !again;
  }

  figures() {
    const { meter } = this;
    if (!meter.tokens) return;
    const figures = {
      speed: shown(meter.speed, 1),
      accept: shown(meter.accept, 2),
      tokens: String(meter.tokens),
      rounds: String(meter.rounds),
      first: shown(meter.first, 2),
      seconds: shown(meter.seconds, 2),
    };
    this.part(".meter").hidden = false;
    for (const [name, value] of Object.entries(figures)) this.part(`[data-figure=${name}]`).textContent = value;
    for (const origin of ORIGINS) this.part(`.share .${origin}`).style.flexGrow = meter.counts[origin];
  }
}
