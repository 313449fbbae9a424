// Plays a recorded pass: guided, slow, or fast.

import { byId, setText } from "./dom.js";
import { PassState } from "./pass.js";
import { tour } from "./tour.js";
import { time } from "./units.js";

// How long a pass takes on the screen.
const LASTS_MS = { slow: 40_000, fast: 4_000 };

export class Player {
  // `show(state, at)` draws a moment, `record()` gives another pass, `live()` is called when live play is chosen.
  constructor({ show, record, live }) {
    Object.assign(this, { show, record, live });
    this.mode = "live";
    this.frame = 0;
    this.round = 0;
    byId("mode").addEventListener("change", (event) => this.choose(event.target.value));
    byId("pause").onclick = () => (this.playing ? this.pause() : this.play());
    byId("back").onclick = () => this.step(-1);
    byId("forward").onclick = () => this.step(1);
    byId("again").onclick = () => this.choose(this.mode);
    byId("position").oninput = (event) => {
      this.pause();
      this.seek((event.target.value / 1000) * this.pass.end_ns);
    };
    byId("player").addEventListener("keydown", (event) => {
      if (this.mode === "live" || event.target.type === "radio" || event.target.id === "position") return;
      if (event.key === "ArrowLeft") this.step(-1);
      else if (event.key === "ArrowRight") this.step(1);
    });
  }

  setPack(pack) {
    this.pack = pack;
    this.state = new PassState(pack);
  }

  async choose(mode) {
    this.pause();
    this.mode = mode;
    byId("transport").hidden = true;
    setText(byId("sentence"), "");
    if (mode === "live") {
      this.pass = null;
      this.live();
      return;
    }
    setText(byId("sentence"), "A pass is being recorded.");
    const pass = await this.record().catch((error) => {
      setText(byId("sentence"), error.message);
      return null;
    });
    if (!pass || this.mode !== mode) return;
    pass.notes.sort((a, b) => a[1] - b[1]);
    this.pass = pass;
    this.steps = tour(this.pack, pass);
    const guided = mode === "guided";
    byId("transport").hidden = false;
    byId("pause").hidden = guided;
    byId("back").hidden = byId("forward").hidden = !guided;
    this.rewind();
    if (guided) this.goTo(0);
    else {
      setText(byId("sentence"), `A pass of ${time(pass.end_ns)}, ${Math.round((LASTS_MS[mode] * 1e6) / pass.end_ns).toLocaleString("en")} times slower.`);
      this.seek(0);
      this.play();
    }
  }

  rewind() {
    this.index = 0;
    this.at = 0;
    this.state.clear();
    this.state.begin(++this.round, this.pass.slots);
  }

  // Shows the moment `at`, in ns since the pass began.
  seek(at) {
    if (at < this.at) this.rewind();
    this.at = at;
    const { notes } = this.pass;
    const now = performance.now();
    while (this.index < notes.length && notes[this.index][1] <= at) this.state.apply(notes[this.index++], now);
    byId("position").value = (at / this.pass.end_ns) * 1000;
    byId("position").setAttribute("aria-valuetext", `${time(at)} of ${time(this.pass.end_ns)}`);
    this.show(this.state, this.pass, at);
  }

  play() {
    if (this.at >= this.pass.end_ns) this.rewind();
    this.playing = true;
    setText(byId("pause"), "Pause");
    let last = performance.now();
    const tick = (now) => {
      const at = this.at + ((now - last) / LASTS_MS[this.mode]) * this.pass.end_ns;
      last = now;
      this.seek(Math.min(at, this.pass.end_ns));
      if (at < this.pass.end_ns) this.frame = requestAnimationFrame(tick);
      else this.pause();
    };
    this.frame = requestAnimationFrame(tick);
  }

  pause() {
    cancelAnimationFrame(this.frame);
    this.playing = false;
    setText(byId("pause"), "Play");
  }

  step(by) {
    if (this.mode === "guided") this.goTo(this.at_step + by);
  }

  goTo(step) {
    this.at_step = Math.max(0, Math.min(this.steps.length - 1, step));
    const { at, sentence } = this.steps[this.at_step];
    byId("back").disabled = this.at_step === 0;
    byId("forward").disabled = this.at_step === this.steps.length - 1;
    setText(byId("sentence"), `${this.at_step + 1} of ${this.steps.length}.  ${sentence}`);
    this.seek(at);
  }
}
