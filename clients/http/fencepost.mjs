// Publish to Fencepost and read from it, with the fetch of Node 18 or newer. One file: copy it.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { types } from "node:util";

// The error for a message that is not stored, or may be stored: see code, https://www.rfc-editor.org/rfc/rfc9457 and docs/openapi.yaml.
export class Problem extends Error {
  constructor(problem) {
    super(`${problem.detail}; ${problem.remedy}`);
    Object.assign(this, problem);
  }
}

export class Fencepost {
  // url is the address of fencepost serve. repeatFor is how long a publish is retried, in milliseconds.
  constructor(url, { token = "", repeatFor = 600_000, ...others } = {}) {
    known(others, "token and repeatFor");
    check(typeof token === "string" && /^[\x21-\x7e]*$/.test(token.trim()), "the token is not one that fencepost serve has issued");
    check(typeof repeatFor === "number" && repeatFor >= 0, "repeatFor is a number of milliseconds");
    // The error of Request would quote the URL, which may have a password.
    let at = {};
    try { at = new URL(url); } catch {}
    check(/^https?:$/.test(at.protocol), "the URL has to begin with http:// or https://, as in http://127.0.0.1:9096");
    check(at.username === "" && at.password === "", "the URL has a name or a password, which fencepost serve does not take; pass a token");
    const request = new Request(at, { headers: token ? { Authorization: `Bearer ${token}` } : {} }); // throws if the token is invalid
    this.url = request.url.replace(/\/$/, "");
    this.headers = request.headers;
    this.repeatFor = repeatFor;
  }

  // Stores one message and returns its ID. A message that may have been stored is sent again under the same key, so it gets into the file once. Give
  // your own key if another process may publish the same message again. payload is a string, a Uint8Array (such as a Buffer) or an ArrayBuffer.
  async publish(type, payload, { key = randomUUID(), headers = {}, delay = "", ...others } = {}) {
    known(others, "key, headers and delay");
    const url = `${this.url}/v1/types/${nameOf(type)}/messages`;
    const body = bodyOf(payload);
    const send = new Headers(this.headers);
    send.set("Content-Type", "application/octet-stream");
    check(key !== "", "the key is empty; leave it out, or give each message another one");
    send.set("Idempotency-Key", headerOf("the key", key));
    check(typeof headers === "object" && !headers?.[Symbol.iterator], "headers are an object, as in { source: \"web\" }"); // the entries of a Map are not its properties
    for (const [name, value] of Object.entries(headers)) {
      const field = `Fencepost-Header-${name}`;
      check(name !== "" && !send.has(field), `the header ${JSON.stringify(name)} has no name, or is there twice: upper and lower case are the same`);
      check(name.toLowerCase() !== "idempotency-key", "the idempotency key is not a header; give it as key");
      send.set(field, headerOf(`the header ${JSON.stringify(name)}`, value));
    }
    check(typeof delay === "string" && /^([\d.]+(ns|us|ms|s|m|h))*$/.test(delay), "the delay is not a duration, as in 90s, 10m or 24h");
    if (delay) send.set("Fencepost-Delay", delay);
    const end = Date.now() + this.repeatFor;
    for (let unclear; ; ) {
      let failed;
      try {
        const answer = await fetch(url, { method: "POST", headers: send, body });
        if (answer.status === 201) return (await answer.json()).id;
        failed = await problemOf(answer);
      } catch (error) {
        const detail = `no answer of the server: ${error.cause?.message ?? error.message}`;
        failed = new Problem({ status: 504, code: "unknown_outcome", detail, remedy: `publish it again with the key ${key}` });
      }
      // If one attempt may have stored the message, a later refusal does not undo that.
      if (failed.code === "unknown_outcome") unclear = failed;
      const wait = failed.retry_after_seconds ?? 2;
      if (![408, 429, 503, 504].includes(failed.status) || Date.now() + wait * 1000 > end) throw unclear ?? failed;
      await sleep(wait * (500 + 500 * Math.random()));
    }
  }

  // Yields the durable messages of a type from an index on, and then new ones, forever. It reconnects when a connection ends. from may also be
  // an ID, a time or a duration, as in docs/http.md.
  async *tail(type, { from = 0, signal, ...others } = {}) {
    known(others, "from and signal");
    const url = `${this.url}/v1/types/${nameOf(type)}/tail`;
    check(typeof from === "string" ? from !== "" : Number.isSafeInteger(from) && from >= 0, "from is an index, or a string with an ID, a time or a duration");
    check(signal === undefined || signal instanceof AbortSignal, "signal is an AbortSignal");
    for (let next = from; ; await sleep(1000, undefined, { signal })) {
      let answer;
      try {
        answer = await fetch(`${url}?from=${encodeURIComponent(next)}`, { headers: this.headers, signal });
        if (!answer.ok) throw await problemOf(answer);
        for await (const event of events(answer.body)) {
          const data = JSON.parse(event.data);
          if (event.event === "problem") throw new Problem(data);
          next = event.event === "gap" ? data.to_index : data.index + 1;
          if (event.event === "gap") throw new Problem({ code: "gap", detail: data.reason, remedy: `go on with from: ${next}`, ...data });
          yield data;
        }
      } catch (error) {
        if (signal?.aborted || (error instanceof Problem && error.status !== 503)) throw error;
      }
    }
  }
}

// Throws unless ok. What JavaScript would convert to some text or ignore is refused: no other message than the one meant may be stored.
function check(ok, detail) {
  if (!ok) throw new TypeError(detail);
}

// Throws if there are other options than the known ones: a key under a wrong name would be no key.
function known(others, names) {
  check(Object.keys(others).length === 0, `the options are ${names}, not ${Object.keys(others).join(", ").slice(0, 100)}`);
}

// Returns the name of a type, which is part of a URL.
function nameOf(type) {
  check(typeof type === "string" && /^[a-z0-9][a-z0-9._-]{0,63}$/.test(type), "a type is a string of 1 to 64 characters: a-z or 0-9 first, then also . _ -");
  return type;
}

// Throws if a text has half of a surrogate pair, which would become U+FFFD.
function checkUnicode(what, text) {
  check(!/\p{Surrogate}/u.test(text), `${what} is not valid Unicode text`);
}

// Returns a payload as the body of requests. A copy, so that all attempts send the same bytes.
function bodyOf(payload) {
  if (types.isUint8Array(payload) || types.isArrayBuffer(payload)) return new Uint8Array(payload).slice();
  check(typeof payload === "string", "the payload is a string, a Uint8Array or an ArrayBuffer; for JSON, pass JSON.stringify(value)");
  checkUnicode("the payload", payload);
  return payload;
}

// Returns a text as the value of a header: each character is a byte of its UTF-8.
function headerOf(what, text) {
  check(typeof text === "string", `${what} is ${text === null ? "null" : `of type ${typeof text}`}, not a string`);
  checkUnicode(what, text);
  check(!/[\x00-\x08\x0a-\x1f\x7f]|^[ \t]|[ \t]$/.test(text), `${what} has a control character, or a space at an end, which HTTP cannot carry`);
  return Buffer.from(text).toString("latin1");
}

// Statuses from a proxy in front of fencepost serve, or from its HTTP library, that a retry would get again.
const refusals = [400, 411, 413, 414, 421, 431];

// Returns the problem in an answer. Throws if a proxy in front of the server has answered, and may let a later request through.
async function problemOf(answer) {
  const body = await answer.text();
  const problem = answer.headers.get("Content-Type")?.startsWith("application/problem+json") ? JSON.parse(body) : {};
  if (problem.code) return new Problem(problem);
  const detail = `status ${answer.status}, not of fencepost serve: ${body.trim().slice(0, 200)}`;
  if (!refusals.includes(answer.status)) throw new Error(detail);
  return new Problem({ status: answer.status, code: "refused", detail, remedy: "correct the URL or the request, or the proxy that refuses it" });
}

// Yields the server-sent events of a body. Only new text is searched, so a large event takes no longer per byte than a small one.
async function* events(body) {
  let line = "", event = {};
  for await (const chunk of body.pipeThrough(new TextDecoderStream())) {
    const [rest, ...others] = chunk.split("\n");
    line += rest;
    for (const next of others) {
      const [, name, value] = line.match(/^([a-z]+): (.*)$/s) ?? [];
      if (name) event[name] = value;
      if (line === "") {
        if (event.data !== undefined) yield event;
        event = {};
      }
      line = next;
    }
  }
}
