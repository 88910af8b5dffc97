// A study as it changes: its submission, its events, and its trials.

import { get, ofStudy } from "../api.js";
import { ACTIVE, ENDED } from "../states.js";

const KINDS = ["queued", "started", "opened", "stage", "trial_started", "trial", "trial_retried", "note", "workers",
  "requested", "priority", "watched", "drift", "concluding", "measured", "done", "stopped", "cancelled", "failed", "lost"];
const AGAIN_MS = 3000;
const DRAW_MS = 250;
const METRICS_MS = 5000;
const WAITING_MS = 3000;
const MOST_NOTES = 200;

/** A study that is followed until a signal. It sends `change`, at most four times a second. */
export class Live extends EventTarget {
  constructor(id, signal) {
    super();
    this.id = id;
    this.signal = signal;
    this.study = null;
    this.trials = new Map();
    this.opened = null;
    this.stage = null;
    this.workers = [];
    this.notes = [];
    this.connection = "closed";
    this.last = 0;
    this.source = null;
    this.timers = {};
    signal.addEventListener("abort", () => {
      this.source?.close();
      Object.values(this.timers).forEach(clearTimeout);
    });
  }

  /** Read the study, its trials and its events so far, and follow it. */
  async start() {
    await this.readStudy();
    await this.readTrials();
    this.connect();
    this.poll();
  }

  get ended() {
    return ENDED.includes(this.study.state);
  }

  get active() {
    return ACTIVE.includes(this.study.state);
  }

  /** Whether the study finds servers for a load: it has an answer and no trials. */
  get sized() {
    return this.study.settings?.size === true;
  }

  /** Whether it has a result to show. */
  get answered() {
    if (this.sized) return this.study.state === "DONE" || this.study.state === "STOPPED";
    return this.ended && this.searched.some((each) => each.ended_at);
  }

  /** The trials of the search, by their number. */
  get searched() {
    return [...this.trials.values()].filter((each) => each.round === 0).sort((a, b) => a.number - b.number);
  }

  /** Read the submission. It sends `ended` when the study has ended since it was read last. */
  async readStudy() {
    const before = this.study;
    this.study = await get(ofStudy(this.id), this.signal);
    this.changed();
    if (before === null || ENDED.includes(before.state) || !this.ended) return;
    await this.readTrials();
    this.dispatchEvent(new Event("ended"));
  }

  /** Read trials with their metrics, which events do not have. */
  async readTrials() {
    const unread = this.searched.filter((each) => each.metrics === undefined || each.state === "pending").map((each) => each.number);
    const after = this.ended || !this.trials.size ? -1 : Math.min(...unread, this.searched.at(-1)?.number ?? 0) - 1;
    let page;
    for (let last = Math.max(after, -1); ; last = page.at(-1).number) {
      page = await get(ofStudy(this.id, `/trials?after=${last}`), this.signal);
      if (!page.length) break;
      for (const trial of page) this.trials.set(`${trial.number}.${trial.round}`, trial);
    }
    this.changed();
  }

  connect() {
    if (this.signal.aborted) return;
    this.source?.close();
    this.source = new EventSource(ofStudy(this.id, `/events?after=${this.last}`));
    this.connection = "connecting";
    this.source.onopen = () => this.connected("open");
    this.source.onerror = () => {
      // Browsers connect again by themselves, unless the answer was an error.
      const closed = this.source.readyState === EventSource.CLOSED;
      this.connected("lost");
      if (closed) this.later("connect", AGAIN_MS, () => this.connect());
    };
    for (const kind of KINDS) this.source.addEventListener(kind, (event) => this.take(kind, event));
  }

  connected(state) {
    this.connection = state;
    this.changed();
  }

  take(kind, event) {
    this.last = Number(event.lastEventId);
    const data = JSON.parse(event.data);
    if (kind === "opened") this.opened = data;
    else if (kind === "stage") this.stage = data;
    else if (kind === "workers") this.workers = data.workers;
    else if (kind === "note" || kind === "drift") this.note(data.at, data.text);
    else if (kind === "trial_retried") this.note(data.at, `trial #${data.number} runs again after ${data.kind}: ${data.message}`);
    else if (kind === "trial_started") this.begin(data);
    else if (kind === "trial") this.end(data);
    else if (kind === "requested") this.note(data.at, `a person asked: ${data.request}`);
    if (data.state !== undefined && kind !== "trial") this.moved(kind, data);
    this.changed();
  }

  moved(kind, data) {
    this.note(data.at, `${kind}${data.reason ? `: ${data.reason}` : ""}`);
    if (!ACTIVE.includes(data.state)) {
      this.workers = [];
      this.stage = null;
      for (const [key, each] of this.trials) if (each.running) this.trials.delete(key);
    }
    this.later("study", 100, async () => {
      await this.readStudy();
      if (!this.ended) return;
      this.source?.close();
      this.connection = "closed";
    });
  }

  begin(data) {
    const key = `${data.number}.${data.round}`;
    if (this.trials.get(key)?.ended_at) return;
    this.trials.set(key, { number: data.number, round: data.round, kind: data.kind, label: null, state: "running", running: true,
      score: null, values: {}, constraints: {}, config: data.config, failure: null, started_at: data.at, ended_at: null });
  }

  end(data) {
    const key = `${data.number}.${data.round}`;
    const known = this.trials.get(key);
    if (known?.metrics !== undefined && known.ended_at) return;
    this.trials.set(key, { label: null, constraints: {}, started_at: known?.started_at ?? null, ...data, ended_at: data.at });
    if (!this.timers.metrics) this.later("metrics", METRICS_MS, () => this.readTrials());
  }

  note(at, text) {
    this.notes.push({ at, text });
    if (this.notes.length > MOST_NOTES) this.notes.shift();
  }

  /** Read the submission again from time to time: what it waits for and what it has used are not events. */
  poll() {
    this.later("poll", WAITING_MS, async () => {
      if ((!this.ended || this.study.watch) && !document.hidden) await this.readStudy();
      this.poll();
    });
  }

  changed() {
    if (!this.timers.draw) this.later("draw", DRAW_MS, () => this.dispatchEvent(new Event("change")));
  }

  later(name, milliseconds, action) {
    clearTimeout(this.timers[name]);
    this.timers[name] = setTimeout(() => {
      delete this.timers[name];
      Promise.resolve(action()).catch(() => {}); // the connection's state says so, and it is read again
    }, milliseconds);
  }

  /** Follow it again after it was resumed. */
  async resumed() {
    await this.readStudy();
    this.connect();
  }
}
