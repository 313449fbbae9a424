// The engine view: the connection to the demonstration engine, its switches, and the four parts that show it.

import { byId, notice, setText } from "./dom.js";
import { events, json, request } from "./api.js";
import { Compare } from "./compare.js";
import { GridView } from "./grid-view.js";
import { Meters } from "./meters.js";
import { Pack, PassState } from "./pass.js";
import { PackView } from "./pack-view.js";
import { Player } from "./player.js";
import { RingView } from "./ring-view.js";
import { SessionsView } from "./sessions-view.js";
import { bytes } from "./units.js";

const RETRY_MS = 1500;
const SETTLE_MS = 350;
const STEPS = 20;

export class Engine {
  constructor() {
    this.isReady = false;
    this.visible = false;
    this.status = { state: "idle" };
    this.connection = null;
    this.waiting = [];
    this.settling = null;
    this.player = new Player({ show: (...all) => this.showPlayed(...all), record: () => this.record(), live: () => this.connect() });
    this.compare = new Compare((comparison) => this.measure(comparison));
    byId("run").onclick = () => (this.isActive() ? this.stop() : this.run());
    byId("controls").onsubmit = (event) => event.preventDefault();
    byId("controls").addEventListener("input", () => {
      this.showBudget();
      this.settle();
      this.settling = setTimeout(() => this.run(), SETTLE_MS);
    });
    document.addEventListener("visibilitychange", () => this.look());
  }

  // The model of the server is loaded.
  ready() {
    this.isReady = true;
    this.look();
  }

  show(visible) {
    this.visible = visible;
    this.look();
  }

  // Listens while somebody can see it: the engine runs only then.
  async look() {
    const looks = this.isReady && this.visible && !document.hidden;
    if (!looks) {
      this.disconnect();
      return;
    }
    if (!this.pack && !(await this.learn())) return;
    if (this.player.mode === "live") this.connect();
  }

  async learn() {
    try {
      this.learning ??= json("/engine");
      const facts = await this.learning;
      if (this.pack) return true;
      this.pack = new Pack(facts);
    } catch (error) {
      notice(error.message, { action: () => this.look(), label: "Try again" });
      return false;
    } finally {
      this.learning = null;
    }
    const { pack } = this;
    this.state = new PassState(pack);
    this.parts = { pack: new PackView(pack), ring: new RingView(pack), grid: new GridView(pack), sessions: new SessionsView(pack), meters: new Meters(pack) };
    setText(byId("grid-caption"), "A row is a layer, a bar is a time, on a logarithmic scale. Check: full is pinned, half is read ahead in time, a ring is late, a cross is absent.");
    byId("panels").style.setProperty("--rows", pack.rows.length);
    this.player.setPack(pack);
    this.pinned = new Set();
    this.depth = 0;
    this.showBudget();
    return true;
  }

  settings() {
    const form = new FormData(byId("controls"));
    const sessions = Number(form.get("sessions"));
    const share = byId("budget").value / STEPS;
    const { smallest_bytes: least, resident_bytes: most } = this.pack.budgets.find((bounds) => bounds.sessions === sessions);
    const budget = share === 1 ? null : Math.ceil(least + (Math.max(0, most - least)) * share);
    return { read_ahead: form.get("read_ahead"), budget_bytes: budget, sessions };
  }

  showBudget() {
    if (!this.pack) return;
    const { budget_bytes: budget } = this.settings();
    const text = budget === null ? "all in memory" : bytes(budget);
    setText(byId("budget-text"), text);
    byId("budget").setAttribute("aria-valuetext", text);
  }

  isActive() {
    return ["opening", "running", "comparing"].includes(this.status.state);
  }

  // Starts the engine, with what the switches say. Whoever has chosen another way to play meanwhile keeps to it.
  async run() {
    this.settle();
    if (!this.pack) return;
    this.wasStopped = false;
    const { mode } = this.player;
    try {
      this.say("The engine is being opened.");
      await request("/engine/run", { method: "POST", body: this.settings() });
      if (this.player.mode === "live") this.connect();
      else if (this.player.mode === mode) this.toLive();
    } catch (error) {
      this.say(error.message);
    }
  }

  // Whether switches were changed that the engine has not been told of, which is no more to be done later.
  settle() {
    const { settling } = this;
    clearTimeout(settling);
    this.settling = null;
    return settling !== null;
  }

  toLive() {
    document.querySelector('input[name="mode"][value="live"]').checked = true;
    this.player.choose("live");
  }

  async stop() {
    this.wasStopped = true;
    try {
      await request("/engine/stop", { method: "POST", body: {} });
    } catch (error) {
      this.say(error.message);
    }
  }

  async measure(comparison) {
    try {
      this.compare.busy(true);
      if (this.player.mode !== "live") this.toLive();
      await this.connect();
      await request("/engine/compare", { method: "POST", body: { comparison } });
    } catch (error) {
      this.compare.busy(false);
      this.say(error.message);
    }
  }

  // Records a pass, then lets the engine rest: what is played back needs it no more.
  async record() {
    await this.connect();
    if (this.settle() || this.status.state !== "running") {
      await request("/engine/run", { method: "POST", body: this.settings() });
      await new Promise((resolve, reject) => this.waiting.push({ resolve, reject }));
    }
    const pass = await json("/engine/pass", { method: "POST", body: {} });
    this.disconnect();
    return pass;
  }

  connect() {
    this.connection ??= this.listen(new AbortController());
    return this.connection.open;
  }

  disconnect() {
    this.connection?.abort.abort();
    this.connection = null;
  }

  listen(abort) {
    const connection = { abort };
    connection.open = new Promise((resolve, reject) => {
      (async () => {
        try {
          const response = await request("/engine/events", { signal: abort.signal });
          this.fresh = true;
          for await (const { event, data } of events(response)) {
            this.receive(event, JSON.parse(data));
            // The first message is the status.
            resolve();
          }
          throw new Error("The connection to the engine was lost.");
        } catch (error) {
          if (error.name === "AbortError" || abort.signal.aborted) return resolve();
          reject(error);
          this.say(error.message);
          if (this.connection === connection) this.connection = null;
          setTimeout(() => this.look(), RETRY_MS);
        }
      })();
    });
    connection.open.catch(() => {});
    return connection;
  }

  receive(event, data) {
    switch (event) {
      case "status":
        return this.showStatus(data);
      case "tick":
        return this.tick(data);
      case "sessions":
        this.depth = data.depth;
        this.parts.meters.depth(data.depth, data.row_reads);
        return this.parts.sessions.show(data.sessions);
      case "states":
        return this.parts.sessions.states(data);
      case "missed":
        this.state.clear();
        return undefined;
      default:
        if (event.startsWith("compare-")) this.compare.show(event.slice("compare-".length), data);
        return undefined;
    }
  }

  showStatus(status) {
    this.status = status;
    const { state, settings, message, memory } = status;
    if (memory) {
      this.pinned = new Set(memory.pinned);
      this.parts.ring.configure(memory, settings);
      this.parts.meters.reset();
      this.state.clear();
      this.state.setSlots(Array.from({ length: memory.slots }, () => ({ group: null, state: "empty", bytes: 0 })));
    }
    if (settings) this.showSettings(settings);
    const says = { idle: "The engine rests.", opening: "The engine is being opened.", comparing: "Measuring.", failed: "The engine failed." };
    const runs = memory && `Running on ${memory.threads} ${memory.threads === 1 ? "thread" : "threads"}, ${memory.isa}.`;
    this.say([state === "running" ? runs : says[state], message].filter(Boolean).join(" "));
    setText(byId("run"), this.isActive() ? "Stop" : "Run");
    if (state !== "comparing") this.compare.busy(false);
    if (state === "running") this.waiting.splice(0).forEach(({ resolve }) => resolve());
    if (state === "failed" || (state === "idle" && !this.fresh)) {
      this.waiting.splice(0).forEach(({ reject }) => reject(new Error(message ?? "The engine was stopped.")));
    }
    // Whoever opens the view wants to see something; whoever pressed Stop does not.
    if (state === "idle" && this.fresh && !this.wasStopped && !this.waiting.length) this.run();
    this.fresh = false;
  }

  // The switches say what the engine does, even if another page has started it.
  showSettings({ read_ahead: way, budget_bytes: budget, sessions }) {
    if (this.settling) return;
    const choose = (name, value) => {
      const input = document.querySelector(`input[name="${name}"][value="${value}"]`);
      if (input) input.checked = true;
    };
    choose("read_ahead", way);
    choose("sessions", sessions);
    const bounds = this.pack.budgets.find((bounds) => bounds.sessions === sessions);
    if (budget === null) byId("budget").value = STEPS;
    else if (bounds) byId("budget").value = Math.min(STEPS - 1, Math.round((STEPS * (budget - bounds.smallest_bytes)) / Math.max(1, bounds.resident_bytes - bounds.smallest_bytes)));
    this.showBudget();
  }

  tick({ at_ms: at, counters, slots, parts }) {
    if (this.player.mode !== "live") return;
    const now = performance.now();
    const { state } = this;
    for (const part of parts) {
      if (part.pass !== state.pass) {
        this.notes = [];
        state.begin(part.pass, part.slots);
      }
      for (const note of part.notes) state.apply(note, now);
      this.notes?.push(...part.notes);
      if (part.end_ns !== null && !part.broken) this.parts.meters.passed(this.notes, part.end_ns, state.waited);
    }
    state.setSlots(slots);
    if (this.status.state === "opening") this.say(`The engine is being opened: ${bytes(counters.read_bytes)} are read.`);
    this.parts.meters.count(at, counters);
    this.parts.meters.recent(state.recent);
    this.draw(state);
  }

  showPlayed(state, pass, at) {
    this.parts.meters.playing(pass.notes, pass.end_ns, at);
    this.parts.meters.split(state.waited, at);
    this.parts.meters.recent(state.recent);
    this.draw(state);
  }

  // At most once a frame, however many events there are.
  draw(state) {
    this.drawn = state;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.parts.pack.show(this.drawn, this.pinned);
      this.parts.ring.show(this.drawn, this.depth);
      this.parts.grid.show(this.drawn);
    });
  }

  say(text) {
    setText(byId("engine-status"), text);
  }
}
