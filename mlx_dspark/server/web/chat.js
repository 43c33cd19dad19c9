/*
 * The conversation: turns on the page, and the messages they make for the next request.
 * A turn that failed or was stopped before its first word is shown, and left out of what the model gets to see.
 */

import { stream } from "./api.js";
import { Answer } from "./answer.js";
import { announce, follow, oneLine, prompt } from "./dom.js";
import { fields } from "./settings.js";

const byId = (id) => document.getElementById(id);

export class Chat {
  /** `refused(error)` may deal with an error before it is shown. */
  constructor(refused) {
    this.refused = refused;
    this.log = byId("log");
    this.welcome = byId("welcome");
    this.turns = [];
    this.running = null;
    prompt(byId("chat-form"), byId("chat-prompt"), (text) => this.ask(text));
    byId("stop").addEventListener("click", () => this.stop());
    byId("new-chat").addEventListener("click", () => this.clear());
  }

  /** Send a message; false where it could not be (a setting is wrong, or an answer is still coming). */
  ask(text) {
    const more = fields();
    if (!more || this.running) return false;
    const turn = this.place(text);
    this.turns.push(turn);
    this.run(turn, more);
    return true;
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.stop();
    this.turns = [];
    this.log.replaceChildren(this.welcome);
    announce("New chat.");
    byId("chat-prompt").focus();
  }

  place(text) {
    const root = byId("turn-template").content.firstElementChild.cloneNode(true);
    root.querySelector(".question").textContent = text;
    this.log.append(root);
    this.welcome.remove();
    return { text, root, answer: null, kept: false };
  }

  async run(turn, more) {
    const messages = this.messages(turn);
    const answer = new Answer(turn.root.querySelector(".slot"));
    answer.root.addEventListener("again", () => this.again(turn));
    turn.answer = answer;
    turn.kept = false;
    this.busy(new AbortController());
    const { signal } = this.running;
    this.log.scrollTop = this.log.scrollHeight;
    announce("Answering.");
    try {
      for await (const event of stream({ messages, ...more }, signal)) follow(this.log, () => answer.feed(event));
      turn.kept = true;
      announce(`Answer complete, ${answer.meter.tokens} tokens. ${oneLine(answer.text)}`);
    } catch (error) {
      turn.kept = !answer.empty;
      follow(this.log, () => answer.close(signal.aborted ? null : error));
      if (signal.aborted) announce("Stopped.");
      else this.refused(error);
    } finally {
      this.busy(null);
    }
  }

  /** A failed turn once more, in its place; what was asked after it stays. */
  again(turn) {
    const more = fields();
    if (more && !this.running) this.run(turn, more);
  }

  /** The messages up to a turn's question. */
  messages(turn) {
    const before = this.turns.slice(0, this.turns.indexOf(turn)).filter((one) => one.kept);
    const asked = (one) => ({ role: "user", content: one.text });
    return [...before.flatMap((one) => [asked(one), one.answer.message]), asked(turn)];
  }

  busy(controller) {
    const had = document.activeElement;
    this.running = controller;
    byId("send").hidden = Boolean(controller);
    byId("stop").hidden = !controller;
    if (had === byId("stop")) byId("chat-prompt").focus();
  }
}
