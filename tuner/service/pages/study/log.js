// The driver's log: its end, which grows while the study runs.

import { ofStudy, raw } from "../api.js";
import { button, el } from "../dom.js";
import { number } from "../format.js";
import { repeat } from "../messages.js";

const EVERY_MS = 3000;
const TAIL = 64 * 1024;
const SIZE = "Tuner-Log-Size";

export async function show(root, live, signal) {
  const text = el("pre", { class: "log", role: "region", tabindex: "0", "aria-label": "Log" });
  const hint = el("p", { class: "note" });
  const earlier = button("show earlier lines", () => before(), { hidden: true });
  root.append(el("h2", {}, "Log"), hint, earlier, text);
  let [from, to] = [null, null];

  const part = async (offset, limit) => {
    const answer = await raw(ofStudy(live.id, `/log?offset=${offset}&limit=${limit}`), signal);
    const bytes = await answer.arrayBuffer();
    return { text: new TextDecoder().decode(bytes), bytes: bytes.byteLength, size: Number(answer.headers.get(SIZE)) };
  };
  const before = async () => {
    const start = Math.max(0, from - TAIL);
    text.prepend((await part(start, from - start)).text);
    from = start;
    earlier.hidden = from === 0;
  };
  const follow = async () => {
    if (live.study.started_at === null) {
      hint.textContent = "The study has not started, so it has no log.";
      return;
    }
    if (from === null) {
      const { size } = await part(0, 1);
      from = to = Math.max(0, size - TAIL);
      earlier.hidden = from === 0;
    } else if (live.ended) {
      return;
    }
    const low = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
    const more = await part(to, TAIL);
    text.append(more.text);
    to += more.bytes;
    hint.textContent = more.size ? `${number(more.size)} bytes` : "The log is empty: its driver had nothing to say.";
    text.hidden = more.size === 0;
    if (low) text.scrollTop = text.scrollHeight;
  };
  live.addEventListener("ended", () => follow().catch(() => {}), { signal });
  await repeat(follow, EVERY_MS, signal);
}
