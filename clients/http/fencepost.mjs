// Publish to Fencepost and read from it, with the fetch of Node 18 or newer. One file: copy it.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

// The error for a message that is not stored, or may be stored: see code, https://www.rfc-editor.org/rfc/rfc9457 and docs/openapi.yaml.
export class Problem extends Error {
  constructor(problem) {
    super(`${problem.detail}; ${problem.remedy}`);
    Object.assign(this, problem);
  }
}

export class Fencepost {
  // url is the address of fencepost serve. repeatFor is how long a publish is retried, in milliseconds.
  constructor(url, { token = "", repeatFor = 600_000 } = {}) {
    const request = new Request(url, { headers: token ? { Authorization: `Bearer ${token}` } : {} }); // throws if the URL or the token is invalid
    if (!/^https?:/.test(request.url)) throw new TypeError(`the URL has to begin with http:// or https://, as in http://${url}`);
    this.url = request.url.replace(/\/$/, "");
    this.headers = request.headers;
    this.repeatFor = repeatFor;
  }

  // Stores one message and returns its ID. A message that may have been stored is sent again under the same key, so it gets into the file once. Give
  // your own key if another process may publish the same message again.
  async publish(type, payload, { key = randomUUID(), headers = {}, delay = "" } = {}) {
    const send = new Headers(this.headers); // its set throws if a header is invalid: a retry would not help
    send.set("Content-Type", "application/octet-stream");
    send.set("Idempotency-Key", utf8(key));
    for (const [name, value] of Object.entries(headers)) send.set(`Fencepost-Header-${name}`, utf8(value));
    if (delay) send.set("Fencepost-Delay", delay);
    const end = Date.now() + this.repeatFor;
    for (let unclear; ; ) {
      let failed;
      try {
        const answer = await fetch(`${this.url}/v1/types/${type}/messages`, { method: "POST", headers: send, body: payload });
        if (answer.status === 201) return (await answer.json()).id;
        failed = await problemOf(answer);
      } catch (error) {
        if (error.cause?.code === "UND_ERR_INVALID_ARG") throw error; // a header with a control character; nothing was sent
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

  // Yields the durable messages of a type from an index on, and then new ones, forever. It reconnects when a connection ends.
  async *tail(type, { from = 0, signal } = {}) {
    for (let next = from; ; await sleep(1000, undefined, { signal })) {
      let answer;
      try {
        answer = await fetch(`${this.url}/v1/types/${type}/tail?from=${next}`, { headers: this.headers, signal });
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

// Returns a text as the value of a header: each character is a byte of its UTF-8.
function utf8(text) {
  return Buffer.from(String(text)).toString("latin1");
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

// Yields the server-sent events of a body.
async function* events(body) {
  let text = "";
  for await (const chunk of body.pipeThrough(new TextDecoderStream())) {
    const parts = (text + chunk).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const event = {};
      for (const line of part.split("\n")) {
        const [, name, value] = line.match(/^([a-z]+): (.*)$/s) ?? [];
        if (name) event[name] = value;
      }
      if (event.data !== undefined) yield event;
    }
  }
}
