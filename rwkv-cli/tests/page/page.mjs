// The page of `rwkv serve` in a browser: what a visitor does, and what must never happen meanwhile.
//
//     node page.mjs RWKV FOLDER MODEL [OPTIONS OF rwkv serve]
//
// starts the program RWKV with MODEL on a free port and leaves screenshots in FOLDER. It needs the npm package playwright-core,
// looked for below the folder that PLAYWRIGHT names, and Chromium, which CHROMIUM names.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

const [program, folder, model, ...options] = process.argv.slice(2);
assert(model, "usage: node page.mjs RWKV FOLDER MODEL [OPTIONS OF rwkv serve]");
const require = createRequire(`${resolve(process.env.PLAYWRIGHT ?? "target/browser")}/`);
const { chromium } = require("playwright-core");
mkdirSync(folder, { recursive: true });

const DESKTOP = { viewport: { width: 1440, height: 900 } };
const PHONE = { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true };
const PATIENCE = 20_000;

// Starts the server, and returns its address once it listens.
async function serve(...more) {
  const server = spawn(program, ["serve", model, "--port", "0", ...options, ...more], { stdio: ["ignore", "ignore", "pipe"] });
  const lines = createInterface({ input: server.stderr });
  const said = [];
  const address = await new Promise((found, failed) => {
    lines.on("line", (line) => {
      said.push(line);
      const at = /http:\/\/[\d.]+:\d+/.exec(line);
      if (at) found(at[0]);
    });
    server.on("exit", (code) => failed(new Error(`rwkv serve ended with ${code}:\n${said.join("\n")}`)));
  });
  return { address, end: () => new Promise((ended) => (server.exitCode === null ? server.on("exit", ended) && server.kill("SIGTERM") : ended())) };
}

// A page whose errors and requests are noted.
async function open(browser, address, options, path = "") {
  const context = await browser.newContext({ ...DESKTOP, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.errors = [];
  page.on("console", (message) => message.type() === "error" && page.errors.push(message.text()));
  page.on("pageerror", (error) => page.errors.push(String(error)));
  page.on("request", (request) => {
    if (!request.url().startsWith(`${address}/`)) page.errors.push(`a request to ${request.url()}`);
  });
  await page.goto(`${address}/${path}`);
  return page;
}

const until = async (what, condition) => {
  const end = Date.now() + PATIENCE;
  while (!(await condition())) {
    assert(Date.now() < end, `${what} did not happen within ${PATIENCE / 1000} s`);
    await new Promise((wake) => setTimeout(wake, 40));
  }
};

const number = async (page, label) => {
  const text = await page.locator("#counters div", { has: page.getByText(label, { exact: true }) }).locator("dd").textContent();
  return Number(text.replace(/[^\d.]/g, ""));
};

const answerOf = (page) => page.locator(".message.assistant .text").last();

async function say(page, text) {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
}

const tests = {
  async "a message is answered piece by piece"({ page }) {
    await until("the model's name", async () => (await page.textContent("#model")).length > 2);
    await page.click("#show-settings");
    await page.fill('[name="max_tokens"]', "60");
    await page.fill('[name="temperature"]', "0");
    await page.click("#close-settings");
    // What a user writes is text, whatever it looks like.
    const prompt = 'Open the door, then close the door, then open the <img src=x onerror="document.title=1">';
    await say(page, prompt);
    const lengths = new Set();
    await until("the end of the answer", async () => {
      lengths.add((await answerOf(page).textContent()).length);
      return await page.isVisible("#send");
    });
    assert(lengths.size >= 2, `the answer came in ${lengths.size} pieces`);
    assert.equal(await page.textContent(".message.user .text"), prompt);
    assert.equal(await page.locator(".message img").count(), 0);
    await until("statistics", async () => /tokens?\/s|token/.test(await page.locator(".message.assistant .foot").last().textContent()));
  },

  async "a conversation is still there after a reload"({ page }) {
    const before = await answerOf(page).textContent();
    await page.reload();
    assert.equal(await answerOf(page).textContent(), before);
    assert.equal(await page.inputValue('[name="max_tokens"]'), "60");
  },

  async "a setting that is wrong is shown, and nothing is sent"({ page }) {
    const messages = await page.locator(".message").count();
    await page.click("#show-settings");
    await page.fill('[name="temperature"]', "-3");
    await page.click("#close-settings");
    await say(page, "never sent");
    await until("the settings", async () => await page.isVisible('[name="temperature"]'));
    assert.equal(await page.locator(".message").count(), messages);
    assert.equal(await page.inputValue("#prompt"), "never sent");
    await page.fill('[name="temperature"]', "0");
    await page.click("#close-settings");
    await page.fill("#prompt", "");
  },

  async "an answer is stopped, asked for again, and its question edited"({ page }) {
    await page.click("#show-settings");
    await page.fill('[name="max_tokens"]', "100000");
    // Without penalties, what repeats itself goes on.
    await page.fill('[name="presence_penalty"]', "0");
    await page.fill('[name="frequency_penalty"]', "0");
    await page.click("#close-settings");
    await say(page, "a b c d a b c d a b c d a b c d a b c");
    await until("an answer that runs", async () => await page.isVisible("#stop"));
    await page.press("#prompt", "Escape");
    await until("the stop", async () => await page.isVisible("#send"));
    assert.match(await page.locator(".message.assistant .foot").last().textContent(), /stopped|ended|token/);
    await page.click("#show-settings");
    await page.fill('[name="max_tokens"]', "5");
    await page.click("#close-settings");
    const messages = await page.locator(".message").count();
    await page.locator(".message.assistant").last().getByRole("button", { name: "Retry" }).click();
    await until("another answer", async () => await page.isVisible("#send"));
    assert.equal(await page.locator(".message").count(), messages);
    await page.press("#prompt", "ArrowUp");
    await page.keyboard.type(" d");
    await page.keyboard.press("Enter");
    await until("the answer to the edited question", async () => await page.isVisible("#send"));
    assert.equal(await page.locator(".message").count(), messages);
    assert.match(await page.locator(".message.user .text").last().textContent(), /c d$/);
  },

  async "conversations are kept apart and deleted"({ page }) {
    await page.click("#new-chat");
    await say(page, "another one");
    await until("the answer", async () => await page.isVisible("#send"));
    assert.equal(await page.locator("#conversation-list li").count(), 2);
    const remove = page.locator("#conversation-list .remove").first();
    await remove.click();
    await remove.click();
    assert.equal(await page.locator("#conversation-list li").count(), 1);
  },

  async "the engine view shows a running engine"({ page }) {
    await page.click("#tab-engine");
    await until("tokens", async () => (await number(page, "tokens")) > 0);
    const before = await number(page, "tokens");
    await until("more tokens", async () => (await number(page, "tokens")) > before);
    await until("reads from the pack", async () => (await number(page, "pack reads")) > 0);
    await until("events", async () => (await page.locator("#recent li").count()) > 2);
    const drawn = (id) => page.evaluate((id) => {
      const canvas = document.getElementById(id);
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return new Set(new Uint32Array(data.buffer)).size;
    }, id);
    for (const id of ["grid", "strip", "history"]) {
      // Only what can be seen is drawn.
      await page.locator(`#${id}`).scrollIntoViewIfNeeded();
      await until(`a picture in ${id}`, async () => (await drawn(id)) > 3);
    }
    await until("a session's text", async () => (await page.locator("#texts .said").first().textContent()).length > 10);
    assert(await page.locator("#texts .likely li").count() >= 2);
  },

  async "the page stays smooth while the engine runs as fast as it can"({ page }) {
    const before = await number(page, "tokens");
    const begin = Date.now();
    const frames = await page.evaluate((ms) => new Promise((resolve) => {
      const times = [];
      let last = performance.now();
      const end = last + ms;
      const frame = (now) => {
        times.push(now - last);
        last = now;
        if (now < end) requestAnimationFrame(frame);
        else resolve(times.slice(1).sort((a, b) => a - b));
      };
      requestAnimationFrame(frame);
    }), 4000);
    const speed = ((await number(page, "tokens")) - before) / ((Date.now() - begin) / 1000);
    const at = (share) => frames[Math.min(frames.length - 1, Math.floor(frames.length * share))];
    console.log(`        ${speed.toFixed(0)} tokens/s; ms between frames: median ${at(0.5).toFixed(1)}, 95 of 100 ${at(0.95).toFixed(1)}, longest ${at(1).toFixed(1)}`);
    // The engine has all processors and the browser no graphics card: what a page may not do is stand still.
    assert(at(0.5) < 50 && at(1) < 1000, "frames come too seldom");
  },

  async "the switches start the engine again"({ page }) {
    await page.locator('#sessions-choice input[value="4"]').check({ force: true });
    await until("four sessions", async () => (await page.locator("#texts .session").count()) === 4);
    await page.locator('#read-ahead input[value="off"]').check({ force: true });
    await until("no read-ahead", async () => (await page.textContent("#ring .queue")).includes("Off"));
    await page.locator("#budget").fill("20");
    await until("all in memory", async () => (await page.textContent("#ring .slots")).includes("No slots"));
    await page.locator("#budget").fill("0");
    await page.locator('#read-ahead input[value="adaptive"]').check({ force: true });
    await until("a ring", async () => (await page.locator("#ring .slot").count()) >= 1);
  },

  async "a group shows its manifest entry, by keyboard too"({ page }) {
    await page.locator(".segment").first().focus();
    await page.keyboard.press("End");
    const last = await page.textContent("#entry-caption");
    await page.keyboard.press("Home");
    const first = await page.textContent("#entry-caption");
    assert.notEqual(first, last);
    assert((await page.locator("#entry tbody tr").count()) >= 1);
  },

  async "a recorded pass is explained and played"({ page }) {
    await page.locator('#mode input[value="guided"]').check({ force: true });
    await until("the first sentence", async () => /^1 of \d+/.test(await page.textContent("#sentence")));
    await page.click("#forward");
    assert.match(await page.textContent("#sentence"), /^2 of \d+/);
    await page.press("#forward", "ArrowRight");
    assert.match(await page.textContent("#sentence"), /^3 of \d+/);
    const position = async () => Number(await page.inputValue("#position"));
    await page.locator('#mode input[value="slow"]').check({ force: true });
    await until("slow play", async () => (await position()) > 5);
    await page.click("#pause");
    const paused = await position();
    await page.waitForTimeout(200);
    assert.equal(await position(), paused);
    await page.click("#pause");
    await until("more of it", async () => (await position()) > paused);
    await page.locator('#mode input[value="fast"]').check({ force: true });
    await until("play", async () => Number(await page.inputValue("#position")) > 300);
    await page.locator('#mode input[value="live"]').check({ force: true });
    const before = await number(page, "tokens");
    await until("live again", async () => (await number(page, "tokens")) !== before);
  },

  async "every control has a name, and the keyboard reaches it"({ page }) {
    for (const view of ["chat", "engine"]) {
      await page.click(`#tab-${view}`);
      const nameless = await page.evaluate((view) => {
        const all = document.querySelectorAll(`.top :is(a, button, select), #${view} :is(button, input, select, textarea, canvas, [role="img"], [tabindex="0"])`);
        const labelled = (element) => (element.getAttribute("aria-labelledby") ?? "").split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join("");
        const named = (element) => [element.getAttribute("aria-label"), labelled(element), ...[...(element.labels ?? [])].map((label) => label.textContent), element.textContent].some((name) => name?.trim());
        return [...all].filter((element) => element.checkVisibility() && !named(element)).map((element) => element.outerHTML.slice(0, 120));
      }, view);
      assert.deepEqual(nameless, [], view);
      await page.evaluate(() => document.activeElement?.blur());
      const wanted = new Set(view === "chat" ? ["new-chat", "show-settings", "scroll", "prompt", "send"] : ["budget", "run"]);
      for (let presses = 0; presses < 60 && wanted.size; presses++) {
        await page.keyboard.press("Tab");
        wanted.delete(await page.evaluate(() => document.activeElement.id));
      }
      assert.deepEqual([...wanted], [], `${view}: not reached`);
    }
  },

  async "a comparison is measured"({ page }) {
    await page.locator("#multiples button").last().click();
    await until("the first bar", async () => (await page.locator(".multiple").last().locator(".bars li").count()) >= 1);
  },

  async "text can be read in both themes"({ page }) {
    for (const theme of ["light", "dark"]) {
      await page.selectOption("#theme", theme);
      const weak = await page.evaluate(() => {
        const probe = document.body.appendChild(document.createElement("span"));
        const colour = (name) => {
          probe.style.color = `var(--${name})`;
          return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
        };
        const luminance = (rgb) => {
          const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const contrast = (a, b) => {
          const [dark, light] = [luminance(colour(a)), luminance(colour(b))].sort((x, y) => x - y);
          return (light + 0.05) / (dark + 0.05);
        };
        const pairs = ["ink", "ink-2", "ink-3", "accent"].flatMap((text) => ["ground", "raised", "sunken"].map((ground) => [text, ground]));
        const found = [...pairs, ["on-ink", "ink"], ["ink", "accent-soft"]].filter(([a, b]) => contrast(a, b) < 4.5);
        probe.remove();
        return found.map(([a, b]) => `${a} on ${b}: ${contrast(a, b).toFixed(2)}`);
      });
      assert.deepEqual(weak, [], theme);
    }
    await page.selectOption("#theme", "auto");
  },
};

async function screenshots(browser, address) {
  const storage = { cookies: [], origins: [] };
  for (const [name, options] of Object.entries({ light: { colorScheme: "light" }, dark: { colorScheme: "dark" }, phone: PHONE })) {
    const page = await open(browser, address, { ...options, storageState: storage });
    await say(page, "Open the door, then close the door, then open the");
    await page.waitForTimeout(300);
    // A short answer may have ended by then, or just now.
    await page.click("#stop", { timeout: 1000 }).catch(() => {});
    await until("the end", async () => await page.isVisible("#send"));
    await page.screenshot({ path: join(folder, `chat-${name}.png`) });
    await page.click("#tab-engine");
    await until("tokens", async () => (await number(page, "tokens")) > 0);
    await page.waitForTimeout(700);
    await page.screenshot({ path: join(folder, `engine-${name}.png`), fullPage: false });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert(wide <= 0, `${name}: the page is ${wide} pixels too wide`);
    await page.locator('#mode input[value="guided"]').check({ force: true });
    await until("the first sentence", async () => /^1 of \d+/.test(await page.textContent("#sentence")));
    await page.screenshot({ path: join(folder, `guided-${name}.png`) });
    const cut = await page.evaluate(() => document.getElementById("engine").scrollWidth - document.getElementById("engine").clientWidth);
    assert(cut <= 0, `${name}: the engine view is ${cut} pixels too wide`);
    assert.deepEqual(page.errors, [], name);
    await page.context().close();
  }
}

async function key(browser) {
  const server = await serve("--api-key", "open-sesame");
  try {
    const page = await open(browser, server.address, {});
    await page.waitForSelector("#key-dialog[open]");
    await page.fill("#key", "wrong");
    await page.press("#key", "Enter");
    await until("the second question", async () => (await page.textContent("#key-title")).includes("not the key"));
    await page.fill("#key", "open-sesame");
    await page.press("#key", "Enter");
    await until("the model's name", async () => (await page.textContent("#model")).length > 2);
    // Who looks at the question and cancels keeps the key.
    await page.click("#key-button");
    await page.click("#key-cancel");
    await page.reload();
    await until("the model's name again", async () => (await page.textContent("#model")).length > 2);
    assert.equal(await page.locator("#key-dialog[open]").count(), 0);
    // A key that is given later repeats what failed without it.
    await page.evaluate(() => sessionStorage.clear());
    await page.reload();
    await page.waitForSelector("#key-dialog[open]");
    await page.click("#key-cancel");
    await page.waitForSelector(".notice");
    await page.click("#key-button");
    await page.fill("#key", "open-sesame");
    await page.press("#key", "Enter");
    await until("the model's name at last", async () => (await page.textContent("#model")).length > 2);
    assert.equal(await page.locator(".notice").count(), 0);
    await page.context().close();
  } finally {
    await server.end();
  }
}

const profile = mkdtempSync(join(tmpdir(), "rwkv-page-"));
const arguments_ = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
// The sandbox of Chromium does not work for root.
if (process.getuid?.() === 0) arguments_.push("--no-sandbox");
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: arguments_, env: { ...process.env, HOME: profile } });
let failed = 0;
const attempt = async (name, run) => {
  const begin = Date.now();
  try {
    await run();
    console.log(`ok      ${name} (${((Date.now() - begin) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed++;
    console.log(`FAILED  ${name}\n${error.stack}`);
  }
};
const server = await serve();
try {
  const page = await open(browser, server.address, {});
  for (const [name, test] of Object.entries(tests)) {
    await attempt(name, async () => {
      await test({ page });
      assert.deepEqual(page.errors.splice(0), []);
    });
    // Each goes on where the one before it ended.
    if (failed) break;
  }
  await page.context().close();
  if (!failed) await attempt("screenshots", () => screenshots(browser, server.address));
} finally {
  await server.end();
}
await attempt("the key is asked for", () => key(browser));
await browser.close();
rmSync(profile, { recursive: true, force: true });
process.exitCode = failed ? 1 : 0;
