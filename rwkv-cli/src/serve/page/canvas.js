// A canvas of the right number of pixels, in the page's colours, drawn at most once a frame, only when something changed, and only
// where it can be seen.

const NAMES = ["ground", "raised", "sunken", "line", "line-strong", "ink", "ink-2", "ink-3", "accent", "accent-soft"];
// Fades need no more frames than this.
const FADE_STEP_MS = 60;
let colours = null;

// The page's colours, as the theme has them now.
export function palette() {
  if (!colours) {
    // A property that holds light-dark() is only resolved where it is used.
    const probe = document.createElement("span");
    document.body.append(probe);
    const resolve = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    colours = Object.fromEntries(NAMES.map((name) => [name.replace("-", "_"), resolve(name)]));
    const style = getComputedStyle(document.body);
    colours.sans = style.getPropertyValue("--sans");
    colours.mono = style.getPropertyValue("--mono");
    probe.remove();
  }
  return colours;
}

const canvases = new Set();
function recolour() {
  colours = null;
  for (const canvas of canvases) canvas.invalidate();
}
addEventListener("themechange", recolour);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);

export class Canvas {
  // `draw(context, width, height, colours, now)` returns whether it wants to be called again soon, since something fades.
  constructor(element, draw) {
    this.element = element;
    this.draw = draw;
    this.frame = 0;
    this.isSeen = false;
    canvases.add(this);
    new ResizeObserver(() => this.invalidate()).observe(element);
    new IntersectionObserver((entries) => {
      this.isSeen = entries.at(-1).isIntersecting;
      this.invalidate();
    }).observe(element);
  }

  invalidate() {
    if (this.isSeen) this.frame ||= requestAnimationFrame((now) => this.paint(now));
  }

  paint(now) {
    this.frame = 0;
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width || !height) return;
    const scale = Math.min(3, devicePixelRatio || 1);
    const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.element.width !== w) this.element.width = w;
    if (this.element.height !== h) this.element.height = h;
    const context = this.element.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    clearTimeout(this.fading);
    if (this.draw(context, width, height, palette(), now)) this.fading = setTimeout(() => this.invalidate(), FADE_STEP_MS);
  }
}
