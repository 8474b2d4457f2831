"use strict";
(function () {
  var zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  function shown(ms, kind) {
    var at = new Date(ms);
    // Midnight is where a day begins: say which.
    if ((kind === "time" || kind === "second") && at.getHours() + at.getMinutes() + at.getSeconds() === 0) kind = "date";
    if (kind === "second") return at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
    if (kind === "time") return at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
    if (kind === "date") return at.toLocaleDateString([], { day: "numeric", month: "short" });
    if (kind === "day") return at.toLocaleDateString([], { weekday: "short", day: "numeric", month: "short" });
    if (kind === "hour") {
      return at.toLocaleString([], { weekday: "short", hour: "2-digit", minute: "2-digit" });
    }
    return at.toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });
  }
  function utc(ms) { return new Date(ms).toISOString().slice(0, 19).replace("T", " ") + " UTC"; }

  document.querySelectorAll("[data-t][data-f]").forEach(function (each) {
    var ms = Number(each.dataset.t);
    // Days are days of UTC: elsewhere they would begin in the middle of one.
    if (each.dataset.f !== "utcday") each.textContent = shown(ms, each.dataset.f);
    if (each.tagName === "TIME") each.title = utc(ms);
  });
  var note = document.getElementById("zone");
  if (note) note.textContent = zone === "UTC" ? "Times in UTC" : "Times in " + zone + "; periods are of UTC";

  // A page that loads itself again is young, or else nobody makes it any more.
  var stale = document.getElementById("stale"), made = Number(document.body.dataset.made), every = Number(document.body.dataset.every);
  function look() {
    var minutes = Math.floor((Date.now() - made) / 60000);
    var age = minutes < 120 ? minutes + " min" : Math.floor(minutes / 60) + " h";
    stale.hidden = Date.now() - made < 3000 * every + 60000;
    stale.textContent = "! This page is " + age + " old: the pipeline that makes it may have stopped.";
  }
  if (stale && made && every) { look(); setInterval(look, 10000); }

  var tip = document.createElement("div");
  tip.id = "tip"; tip.hidden = true; tip.setAttribute("role", "status");
  document.body.appendChild(tip);
  function show(band, x, y) {
    tip.textContent = "";
    var head = document.createElement("b"), small = document.createElement("small");
    head.textContent = band.dataset.head || shown(Number(band.dataset.t), "full");
    small.textContent = band.dataset.head ? "\n" : "\n" + utc(Number(band.dataset.t)) + "\n";
    tip.append(head, small, document.createTextNode(band.dataset.tip));
    tip.hidden = false;
    var box = tip.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(x + 16, innerWidth - box.width - 8)) + "px";
    tip.style.top = Math.max(8, Math.min(y + 16, innerHeight - box.height - 8)) + "px";
  }
  function hide() {
    tip.hidden = true;
    document.querySelectorAll(".band.on").forEach(function (each) { each.classList.remove("on"); });
  }
  document.querySelectorAll("svg.chart").forEach(function (chart) {
    var bands = Array.from(chart.querySelectorAll(".band")), place = -1;
    bands.forEach(function (band) {
      band.addEventListener("mousemove", function (event) { show(band, event.clientX, event.clientY); });
      band.addEventListener("click", function (event) { show(band, event.clientX, event.clientY); });
    });
    chart.addEventListener("mouseleave", hide);
    chart.addEventListener("blur", hide);
    chart.addEventListener("keydown", function (event) {
      var moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
      if (event.key === "Escape") return hide();
      if (!(event.key in moves) || !bands.length) return;
      event.preventDefault();
      hide();
      place = Math.max(0, Math.min(bands.length - 1, (place < 0 ? bands.length : place) + moves[event.key]));
      bands[place].classList.add("on");
      var box = bands[place].getBoundingClientRect();
      show(bands[place], box.left, box.top);
    });
  });
})();
