/*
 * The server as this page sees it: health, and one chat completion as a sequence of events.
 * Knows HTTP, server-sent events and the API key (kept in sessionStorage, so in this tab only). Knows no DOM.
 */

const KEY = "mlx-dspark-key";
const BASE = location.origin + location.pathname;

/** An answer that did not come or was cut off. `status` is HTTP's, or 0 where the connection itself failed. */
export class ServerError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** What the server is and what it has loaded. */
export async function health() {
  const response = await reach("health", {});
  if (!response.ok) throw await refusal(response);
  return response.json();
}

/**
 * One answer, streamed. Yields, in order:
 *   {type: "begun"}                                            the request left the queue
 *   {type: "text", kind: "text" | "reasoning", text}           what the answer says
 *   {type: "round", tokens: [[kind, text, origin]], proposed, accepted, committed}   how the last of it came
 *   {type: "ended", reason, measured}                          exactly once, last
 * Throws ServerError, or AbortError if `signal` fires; the connection is closed then, which ends the request.
 */
export async function* stream(fields, signal) {
  const body = JSON.stringify({ ...fields, stream: true, stream_rounds: true });
  const headers = { "content-type": "application/json", ...authorization() };
  const response = await reach("v1/chat/completions", { method: "POST", headers, body, signal });
  if (!response.ok) throw await refusal(response);
  let ended = false;
  for await (const data of events(response.body, signal)) {
    if (data === "[DONE]") continue;
    for (const event of read(JSON.parse(data))) {
      ended ||= event.type === "ended";
      yield event;
    }
  }
  if (!ended) throw lost();
}

function authorization() {
  const key = sessionStorage.getItem(KEY);
  return key ? { authorization: `Bearer ${ascii(key)}` } : {};
}

/** Header values are bytes: a key's UTF-8, one character a byte. */
function ascii(key) {
  return String.fromCharCode(...new TextEncoder().encode(key));
}

async function reach(path, options) {
  try {
    return await fetch(BASE + path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server can't be reached. Is it still running? Start it again, then try again.");
  }
}

/** A refusal's own words, with what to do about it. */
async function refusal(response) {
  let said = "";
  try {
    said = (await response.json()).error.message;
  } catch {
    said = `the server answered with status ${response.status}`;
  }
  const lead = {
    401: "The server wants its API key",
    413: "The conversation is too large",
    429: "The server is busy",
    503: "The server is shutting down",
  }[response.status];
  return new ServerError(lead ? `${lead}: ${said}` : sentence(said), response.status);
}

function lost() {
  return new ServerError("The connection was lost before the answer was complete.");
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The data of each server-sent event. */
async function* events(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
    }
  } catch (error) {
    if (signal?.aborted || error.name === "AbortError") throw error;
    throw lost();
  }
}

/** One chunk -> events. */
function* read(chunk) {
  if (chunk.error) throw new ServerError(sentence(chunk.error.message), 500);
  const choice = chunk.choices[0];
  if (!choice) return;
  const { role, content, reasoning_content: reasoning } = choice.delta;
  const own = chunk.mlx_dspark;
  if (role) yield { type: "begun" };
  if (reasoning) yield { type: "text", kind: "reasoning", text: reasoning };
  if (content) yield { type: "text", kind: "text", text: content };
  if (choice.finish_reason) yield { type: "ended", reason: choice.finish_reason, measured: own };
  else if (own) yield { type: "round", ...own };
}
