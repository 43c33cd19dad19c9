/*
 * Folds one answer's rounds into figures. Pure: no DOM, no clock of its own.
 * As on the server, the first round belongs to the prompt: speed and accept length begin after it.
 */

export class Meter {
  constructor() {
    this.counts = { drafted: 0, corrected: 0, bonus: 0, plain: 0 };
    this.tokens = 0;
    this.rounds = 0;
    this.first = null; // seconds from `start` to the first token
    this.seconds = 0; // seconds after it
    this.speed = null; // tokens a second
    this.accept = null; // tokens a round
  }

  start(now) {
    this.began = now;
  }

  /** A round that came at `now`, in milliseconds. */
  round({ proposed, accepted, committed }, now) {
    const kept = Math.min(accepted, committed);
    this.counts.drafted += kept;
    this.counts[!proposed ? "plain" : accepted === proposed ? "bonus" : "corrected"] += committed - kept;
    this.tokens += committed;
    if (this.first === null) {
      this.first = (now - this.began) / 1000;
      this.since = now;
      this.before = committed;
      return;
    }
    this.rounds += 1;
    this.seconds = (now - this.since) / 1000;
    const later = this.tokens - this.before;
    this.accept = later / this.rounds;
    this.speed = this.seconds > 0 ? later / this.seconds : null;
  }

  /** The server's own measurements take the place of those seen from here. */
  end(measured) {
    this.rounds = measured.rounds;
    this.first = measured.first_token_seconds;
    this.seconds = measured.decode_seconds;
    this.speed = measured.tokens_per_second || null;
    this.accept = measured.accept_length || null;
  }
}

/** A figure in few characters; a dash where there is none. */
export function shown(value, digits) {
  return value === null ? "–" : value.toFixed(digits);
}
