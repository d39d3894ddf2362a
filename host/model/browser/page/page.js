// The page: it starts the worker, and draws its events.
const EXACT = "f16";
const CODECS = ["i8", "s4", "t4", "t4,t2", "t2", "s2"];
const CHOSEN = new Set(["s4", "t4,t2", "t2"]);
const byId = (id) => document.getElementById(id);
const status = byId("status");

for (const codec of CODECS) {
  const label = document.createElement("label");
  const box = Object.assign(document.createElement("input"), { type: "checkbox", name: "codec", value: codec, checked: CHOSEN.has(codec) });
  label.append(box, " ", codec);
  byId("codecs").append(label);
}

const unpacked = async (id) => {
  const packed = Uint8Array.from(atob(byId(id).textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return WebAssembly.compile(await new Response(stream).arrayBuffer());
};
const source = URL.createObjectURL(new Blob([byId("worker").textContent], { type: "text/javascript" }));
const module = unpacked("module");
module.then(
  () => {
    byId("run").textContent = "Run";
    byId("run").disabled = false;
    status.textContent = "Ready.";
  },
  (error) => (status.textContent = `This browser cannot run the model: ${error.message}`),
);

// What is shown of each cache: the elements that change.
let rows = [];
let worker;
let done;

const text = (tag, content, className = "") => Object.assign(document.createElement(tag), { textContent: content, className });

function row(name) {
  const bar = text("div", "", "bar"), track = text("div", "", "track"), fill = text("div", "", "fill");
  const amount = text("div", "", "amount");
  track.append(fill);
  bar.append(text("div", name), track, amount);
  byId("bars").append(bar);
  const card = document.createElement("article"), body = text("p", ""), same = text("p", "", "same");
  card.append(text("h3", name), body, same);
  byId("cards").append(card);
  const line = document.createElement("tr"), cells = [1, 2, 3, 4].map(() => text("td", "–"));
  const head = text("th", name);
  head.scope = "row";
  line.append(head, ...cells);
  byId("figures").append(line);
  return { name, fill, amount, body, same, cells, text: "", bytes: 0, f16: 0 };
}

// Where `other` leaves `first`: the start of its first other word; -1 if it does not.
function departure(first, other) {
  let same = 0;
  while (same < other.length && other[same] === first[same]) same++;
  if (same === other.length) return -1;
  return other.slice(0, same).search(/\S*$/);
}

function drawText(row) {
  const at = row === rows[0] ? -1 : departure(rows[0].text, row.text);
  if (at < 0) {
    row.body.textContent = row.text;
  } else {
    row.body.replaceChildren(row.text.slice(0, at), text("mark", row.text.slice(at)));
  }
}

const kib = (bytes) => `${(bytes / 1024).toFixed(1)} KiB`;

function drawBars() {
  const most = Math.max(...rows.map((row) => Math.max(row.bytes, row.f16)), 1);
  for (const row of rows) {
    row.fill.style.width = `${(100 * row.bytes) / most}%`;
    const share = row === rows[0] ? "" : `, ${((100 * row.bytes) / row.f16).toFixed(0)} % of f16`;
    row.amount.textContent = row.bytes ? kib(row.bytes) + share : "";
  }
}

const draw = {
  begin({ level }) {
    byId("level").textContent = `Instruction set: ${level}.`;
  },
  text({ index, piece, bytes, f16_bytes }) {
    const row = rows[index];
    row.text += piece;
    [row.bytes, row.f16] = [bytes, f16_bytes];
    status.textContent = `Writing with ${row.name}.`;
    drawText(row);
    drawBars();
  },
  end({ index, tokens_per_second }) {
    const row = rows[index];
    row.cells[0].textContent = tokens_per_second.toFixed(0);
    if (index > 0) row.same.textContent = row.text === rows[0].text ? "The same text." : "";
    status.textContent = index + 1 < rows.length ? `Writing with ${rows[index + 1].name}.` : "Comparing attention and predictions.";
  },
  quality({ index, kl, top1_agreement, attention_error }) {
    const figure = (value) => (value === 0 ? "0" : value.toPrecision(2));
    const [, error, divergence, same] = rows[index].cells;
    error.textContent = figure(attention_error);
    divergence.textContent = figure(kl);
    same.textContent = `${(100 * top1_agreement).toFixed(1)} %`;
  },
  done() {
    finish("Done.");
  },
  error({ message }) {
    finish(message);
  },
};

function finish(words) {
  worker?.terminate();
  worker = undefined;
  byId("run").disabled = false;
  byId("stop").disabled = true;
  status.textContent = words;
  done = true;
}

byId("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const chosen = [...document.querySelectorAll("input[name=codec]:checked")].map((box) => box.value);
  const names = [EXACT, ...chosen];
  for (const id of ["bars", "cards", "figures"]) byId(id).replaceChildren();
  rows = names.map(row);
  const window = `hot=${byId("hot").value} sinks=${byId("sinks").value}`;
  const policies = names.map((name) => (name === EXACT ? EXACT : `${name} ${window}`));
  byId("run").disabled = true;
  byId("stop").disabled = false;
  status.textContent = "Reading the prompt.";
  done = false;
  worker = new Worker(source);
  worker.onmessage = ({ data }) => draw[data.event](data);
  worker.onerror = ({ message }) => finish(message);
  worker.postMessage({ module: await module, args: ["tqkv-browser", byId("prompt").value, byId("tokens").value, ...policies] });
});

byId("stop").addEventListener("click", () => finish("Stopped."));
