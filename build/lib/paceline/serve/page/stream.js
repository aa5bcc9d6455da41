// Send requests to the server, read streamed answers and report errors.

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// Yield the events of a streamed chat completion. Throws Refused with the server's message, or AbortError.
export async function* ask(body, key, signal) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server cannot be reached. Check that it is running.", 0);
  }
  if (!response.ok) throw new Refused(await errorMessage(response), response.status);
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Refused(event.error.message ?? "The answer ended with an error.", 500);
    yield event;
  }
  throw new Refused("The connection was lost before the answer was complete.", 0);
}

async function errorMessage(response) {
  const wait = response.headers.get("Retry-After");
  try {
    const { error } = await response.json();
    return error.message + (wait && !error.message.includes(wait) ? ` Try again in ${wait} s.` : "");
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

// Yield the data of server-sent events.
async function* events(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let waiting = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      waiting += decoder.decode(value, { stream: true });
      const parts = waiting.split(/\r?\n\r?\n/);
      waiting = parts.pop();
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
        if (data.length) yield data.join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export async function about(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Refused(await errorMessage(response), response.status);
  return response.json();
}
