// Requests to the instance that served the page. All addresses are relative: any prefix works.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.name = 'ApiError';
    this.status = status; // 0: no answer came.
  }
}

const TIMEOUT_MS = 10_000;
const LINE_CHARACTERS_MAX = 1 << 26;

// Returns the path of what peer NAME serves, by way of the instance that served the page.
export const peerPath = (name, rest) => `raylay/peer/${encodeURIComponent(name)}/${rest}`;

async function errorOf(response) {
  let text = '';
  try {
    text = (await response.json()).error;
  } catch {
    // Something between us and the instance answered.
  }
  return new ApiError(
    response.status,
    text || `the answer was ${response.status} ${response.statusText}`.trim(),
  );
}

async function ask(path, options, timeoutMs) {
  const timer = new AbortController();
  const timeout = timeoutMs && setTimeout(() => timer.abort(), timeoutMs);
  const signals = [timer.signal, options.signal].filter(Boolean);
  try {
    const response = await fetch(path, { ...options, signal: AbortSignal.any(signals) });
    if (!response.ok) throw await errorOf(response);
    return response;
  } catch (error) {
    if (error instanceof ApiError || options.signal?.aborted) throw error;
    throw new ApiError(
      0,
      timer.signal.aborted
        ? `${location.host} has not answered for ${timeoutMs / 1000} s`
        : `${location.host} cannot be reached`,
    );
  } finally {
    clearTimeout(timeout);
  }
}

// A `notModified` answer is told by null.
export async function getJson(path, { signal, timeoutMs = TIMEOUT_MS } = {}) {
  const response = await ask(path, { signal, headers: { Accept: 'application/json' } }, timeoutMs);
  return response.json();
}

export async function getText(path, { signal, timeoutMs = TIMEOUT_MS } = {}) {
  return (await ask(path, { signal }, timeoutMs)).text();
}

export async function postJson(path, body = {}, { signal, timeoutMs = 60_000 } = {}) {
  const response = await ask(
    path,
    {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', 'X-Raylay': '1' },
      body: JSON.stringify(body),
      signal,
    },
    timeoutMs,
  );
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

// Calls onObject with each line of a stream of JSON objects, as they come; returns at its end.
export async function lines(path, onObject, { signal } = {}) {
  const response = await ask(path, { signal }, 0);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split('\n');
    rest = parts.pop();
    if (rest.length > LINE_CHARACTERS_MAX) {
      reader.cancel();
      throw new ApiError(0, `${path} sent a line that is too long`);
    }
    for (const line of parts) if (line) onObject(JSON.parse(line));
  }
  if (rest.trim()) onObject(JSON.parse(rest));
}

// Listens to server-sent events until the returned function is called. The browser connects
// again by itself; onState hears true when it is connected, and false when it is not.
export function events(path, onEvent, onState = () => {}) {
  const source = new EventSource(path);
  source.onmessage = (message) => onEvent(JSON.parse(message.data));
  source.onopen = () => onState(true);
  source.onerror = () => onState(false);
  return () => source.close();
}
