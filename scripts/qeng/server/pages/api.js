// The server's answers. Requests go to the origin that the page is from, so that the browser adds the key it knows.

async function request(path, body, signal) {
  const answer = await fetch(path, {
    signal, cache: "no-store", method: body === undefined ? "GET" : "POST", body: body && JSON.stringify(body),
    headers: body === undefined ? {} : { "content-type": "application/json" },
  });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Error(said.error?.message ?? `${path}: status ${answer.status}`);
}

export const get = async (path, signal) => (await request(path, undefined, signal)).json();
export const post = async (path, body, signal) => (await request(path, body, signal)).json();

// A text, and the offset of what comes after it.
export async function text(path, signal) {
  const answer = await request(path, undefined, signal);
  return [await answer.text(), Number(answer.headers.get("x-next-offset") ?? 0)];
}

// The values of a stream of server-sent events, to [DONE] or its end.
export async function* events(path, body, signal) {
  const answer = await request(path, body, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n").filter((line) => line.startsWith("data: "));
      const data = lines.map((line) => line.slice(6)).join("\n");
      if (data === "[DONE]") return;
      const said = JSON.parse(data);
      if (said.error) throw new Error(said.error.message);
      yield said;
    }
  }
}

// Prometheus' text as {name: [{labels, value}...]}.
export async function metrics(signal) {
  const [lines] = await text("/metrics", signal);
  const found = {};
  for (const line of lines.split("\n")) {
    const parts = line.match(/^(\w+)(?:\{(.*)\})? (\S+)$/);
    if (!parts || line.startsWith("#")) continue;
    const labels = {};
    for (const [, name, value] of (parts[2] ?? "").matchAll(/(\w+)="((?:\\.|[^"\\])*)"/g)) labels[name] = value;
    (found[parts[1]] ??= []).push({ labels, value: Number(parts[3]) });
  }
  return found;
}

export function sum(found, name, label, value) {
  return (found[name] ?? []).filter((each) => !label || each.labels[label] === value)
    .reduce((total, each) => total + each.value, 0);
}

// The value below which a share of a histogram lies, linear within a bucket; beyond the last bound: that bound.
export function quantile(buckets, share) {
  const total = buckets.at(-1)?.value;
  if (!total) return undefined;
  let low = 0, before = 0;
  for (const { labels, value } of buckets) {
    if (labels.le === "+Inf") return low;
    if (value >= share * total) return low + (labels.le - low) * (share * total - before) / (value - before);
    [low, before] = [Number(labels.le), value];
  }
  return low;
}
