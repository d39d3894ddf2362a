// Checks the page of `cargo xtask page`: its module prints what the program prints on this machine, and the page works in
// Chromium with a keyboard, offline, at two widths.
//
//     node page.mjs PAGE PROGRAM FOLDER    # PROGRAM is built for this machine; screenshots go to FOLDER
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { closeSync, openSync, readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { WASI } from "node:wasi";
import { gunzipSync } from "node:zlib";
import { chromium } from "playwright-core";

const [page, program, folder] = process.argv.slice(2);
const PROMPT = "The borrow checker ensures that references";
const WORDS = [PROMPT, "120", "f16", "s4 hot=16 sinks=4", "t4,t2 hot=16 sinks=4", "t2 hot=16 sinks=4"];

const SAID = [
  'heading "One prompt, several caches" [level=1]', 'textbox "Prompt"', 'spinbutton "New characters"', 'combobox "Exact newest tokens"',
  'combobox "Exact first tokens"', 'group "Keys and values, beside exact ones"', 'checkbox "t4,t2" [checked]', 'button "Run"',
  'button "Stop" [disabled]', "status: Done.", 'region "Bytes held"', 'region "Texts"', 'region "Figures"', 'columnheader "error of attention"',
  'rowheader "t4,t2"',
];

const lines = (text, event) => text.trim().split("\n").map(JSON.parse).filter((line) => line.event === event);

// The same tokens and codes. Pointers of 32 bits make headers smaller, and sums over f16 rows round in another order.
function compare(here, there) {
  const [one, other] = [here, there].map((text) => lines(text, "text"));
  assert.deepEqual(one.map(({ bytes, ...line }) => line), other.map(({ bytes, ...line }) => line));
  one.forEach(({ bytes }, i) => near(bytes, other[i].bytes, 0.01));
  const figures = [here, there].map((text) => lines(text, "quality"));
  assert.equal(figures[0].length, WORDS.length - 2);
  figures[0].forEach((line, i) => {
    // A key that is rounded otherwise may get another code.
    for (const [name, share] of [["kl", 0.25], ["attention_error", 0.05], ["top1_agreement", 0.02]])
      near(line[name], figures[1][i][name], share);
  });
}

const near = (a, b, share) => assert.ok(Math.abs(a - b) <= share * Math.abs(b), `${a} and ${b}`);

function inNode() {
  const module = /<script id="module"[^>]*>([^<]*)</.exec(readFileSync(page, "utf8"))[1];
  const out = `${folder}/node.txt`;
  const stdout = openSync(out, "w");
  const wasi = new WASI({ version: "preview1", args: ["tqkv-browser", ...WORDS], env: {}, returnOnExit: true, stdout });
  const compiled = new WebAssembly.Module(gunzipSync(Buffer.from(module, "base64")));
  assert.equal(wasi.start(new WebAssembly.Instance(compiled, wasi.getImportObject())), 0);
  closeSync(stdout);
  return readFileSync(out, "utf8");
}

async function inBrowser(browser, width, height) {
  const context = await browser.newContext({ viewport: { width, height }, offline: true });
  const tab = await context.newPage();
  const faults = [];
  tab.on("pageerror", (error) => faults.push(error.message));
  tab.on("console", (message) => message.type() === "error" && faults.push(message.text()));
  await tab.goto(pathToFileURL(resolve(page)).href);
  await tab.waitForSelector("#run:enabled", { timeout: 120_000 });
  // By the keyboard alone: every control is reached in its order.
  await tab.focus("#prompt");
  await tab.keyboard.press("Control+A");
  await tab.keyboard.type(PROMPT);
  await tab.keyboard.press("Tab");
  await tab.keyboard.type("120");
  while (!(await tab.evaluate(() => document.activeElement.id === "run"))) await tab.keyboard.press("Tab");
  const start = Date.now();
  await tab.keyboard.press("Enter");
  await tab.waitForFunction(() => document.querySelector("article p").textContent.length > 0, null, { timeout: 120_000 });
  const first = Date.now() - start;
  await tab.waitForFunction(() => document.getElementById("status").textContent === "Done.", null, { timeout: 600_000 });
  const texts = await tab.$$eval("article p:first-of-type", (all) => all.map((one) => one.textContent));
  const figures = await tab.$$eval("#figures tr", (all) => all.map((line) => [...line.cells].map((cell) => cell.textContent)));
  const marks = await tab.$$eval("article p:first-of-type", (all) => all.map((one) => one.querySelector("mark")?.textContent ?? ""));
  const bars = await tab.$$eval("#bars .bar", (all) => all.map((one) => {
    const [track, fill] = [".track", ".fill"].map((part) => one.querySelector(part).getBoundingClientRect().width);
    return { share: fill / track, amount: one.querySelector(".amount").textContent };
  }));
  // What a screen reader is told: roles, names and values.
  const told = await tab.locator("body").ariaSnapshot();
  for (const control of SAID) assert.ok(told.includes(control), `${control} is not in\n${told}`);
  const wide = await tab.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(wide <= 0, `${width}: the page is ${wide} pixels wider than the window`);
  await tab.screenshot({ path: `${folder}/page-${width}.png`, fullPage: true });
  // A second run that is stopped leaves the page ready.
  await tab.click("#run");
  await tab.click("#stop");
  assert.equal(await tab.textContent("#status"), "Stopped.");
  assert.ok(await tab.isEnabled("#run"));
  assert.deepEqual(faults, []);
  await context.close();
  return { texts, marks, bars, figures, first };
}

// The text from the first word that is not that of `first`.
function departure(first, other) {
  const words = other.split(/(?<=\s)/);
  let at = 0;
  for (const word of words) {
    if (!first.slice(at).startsWith(word)) return other.slice(at);
    at += word.length;
  }
  return "";
}

// The bytes of each cache at the end of its text, in the program of the page.
function held(text) {
  return WORDS.slice(2).map((_, index) => lines(text, "text").filter((line) => line.index === index).at(-1));
}

const native = execFileSync(resolve(program), WORDS, { encoding: "utf8" });
const module = inNode();
compare(module, native);
const ends = held(module);
const widest = Math.max(...ends.flatMap(({ bytes, f16_bytes }) => [bytes, f16_bytes]));
console.log("the module prints what the program prints");

const expected = WORDS.slice(2).map((_, index) =>
  lines(native, "text").filter((line) => line.index === index).map(({ piece }) => piece).join(""));
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"],
});
for (const [width, height] of [[1200, 900], [390, 844]]) {
  const { texts, marks, bars, figures, first } = await inBrowser(browser, width, height);
  assert.deepEqual(texts, expected);
  assert.deepEqual(marks, expected.map((text) => departure(expected[0], text)));
  assert.ok(marks.some((mark) => mark !== ""), "no text leaves the first one: nothing is marked");
  assert.equal(bars.length, ends.length);
  bars.forEach(({ share, amount }, i) => {
    near(share, ends[i].bytes / widest, 0.01);
    assert.ok(amount.startsWith(`${(ends[i].bytes / 1024).toFixed(1)} KiB`), amount);
  });
  assert.equal(figures.length, expected.length);
  console.log(`${width} pixels: the first character after ${first} ms`);
  for (const line of figures) console.log("  " + line.join("  "));
}
await browser.close();
