-- The pulse simulator of the report: one weight, its counter, and buttons that send pulses.

local simulator = {}

local page = [[
<h2>Send a weight pulses</h2>
<p>A weight is +1 or -1. A pulse says which way descent wants it. Pulses that agree bank health, up to the top; a pulse
against the weight takes one, and at none the weight flips and its health is refilled. With a top of 1 that is the
two-step machine: a first contrary pulse arms it, a second flips it, and one that agrees disarms it. Pulses of noise
agree as often as not, and flip it again and again;
friction counts every gradient a little for the sign that the weight has, so that noise alone seldom does.</p>
<p>top <select id="top"><option>1</option><option>3</option><option selected>7</option><option>15</option></select>
<button id="up">pulse towards +1</button> <button id="down">pulse towards -1</button>
<button id="noise">100 pulses of noise</button>
with friction <select id="friction"><option selected>0</option><option>0.1</option><option>0.2</option></select></p>
<pre id="state" aria-live="polite"></pre>
<script>
(function () {
  var weight = 1, health = 7, flips = 0, sent = 0, log = [];
  function top() { return +document.getElementById("top").value; }
  function show() {
    var bar = "";
    for (var i = 0; i < top(); ++i) bar += i < health ? "#" : ".";
    document.getElementById("state").textContent = "weight " + (weight > 0 ? "+1" : "-1") +
      "   health " + health + " of " + top() + "  [" + bar + "]\n" +
      sent + " pulses, " + flips + " flips\n" + log.slice(-8).join("\n");
  }
  function pulse(p) {
    sent++;
    if (p === weight) { health = Math.min(top(), health + 1); log.push("agrees: health " + health); }
    else if (health > 0) { health--; log.push("against: health " + health); }
    else {
      weight = -weight; health = top(); flips++;
      log.push("against at none: FLIP to " + (weight > 0 ? "+1" : "-1"));
    }
  }
  document.getElementById("up").onclick = function () { pulse(1); show(); };
  document.getElementById("down").onclick = function () { pulse(-1); show(); };
  document.getElementById("noise").onclick = function () {
    // Beyond 1.44 deviations (q = 0.15) a normal tail thins out by exp(-1.89 d) over a distance d. Friction lies on
    // either side.
    var agreeing = 1 / (1 + Math.exp(-2 * 1.89 * document.getElementById("friction").value));
    for (var i = 0; i < 100; ++i) pulse(Math.random() < agreeing ? weight : -weight);
    show();
  };
  document.getElementById("top").onchange = function () { health = top(); show(); };
  show();
})();
</script>
]]

function simulator.html() return page end

return simulator
