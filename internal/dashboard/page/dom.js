// What the panels build their part of the document with. Text becomes text nodes, never HTML: names and values come from users.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
    else if (key === 'style') for (const [name, v] of Object.entries(value)) node.style.setProperty(name, v);
    else node.setAttribute(key, value === true ? '' : String(value));
  }
  node.append(...children.flat(Infinity).filter(c => c !== undefined && c !== null && c !== false));
  return node;
}

// el makes an element: el('td', {class: 'num'}, 'text', otherElement). Properties that begin with "on" are listeners.
function el(tag, props, ...children) { return fill(document.createElement(tag), props, children); }

function svg(tag, props, ...children) { return fill(document.createElementNS(SVG, tag), props, children); }

// table draws rows of cells below their heads; on a narrow screen each cell carries its head.
function table(heads, rows, empty) {
  if (rows.length === 0) return el('p', {class: 'empty'}, empty || 'Nothing.');
  return el('table', {},
    el('thead', {}, el('tr', {}, heads.map(h => el('th', {scope: 'col', class: h.num && 'num'}, h.text ?? h)))),
    el('tbody', {}, rows.map(row => {
      const tr = el('tr', {}, row.cells.map((cell, i) => el('td', {'data-label': heads[i].text ?? heads[i], class: heads[i].num && 'num'}, cell)));
      if (row.open) {
        tr.className = 'link';
        tr.tabIndex = 0;
        tr.addEventListener('click', row.open);
        tr.addEventListener('keydown', e => { if (e.key === 'Enter') row.open(); });
      }
      return tr;
    })));
}

function tile(title, value, note) {
  return el('div', {class: 'tile'}, el('div', {class: 'muted'}, title), el('div', {class: 'value'}, value), el('div', {class: 'muted small'}, note || ''));
}

// meter is a bar of one part of a whole.
function meter(part, whole, label, kind) {
  const width = whole > 0 ? Math.min(100, 100 * part / whole) : 0;
  return el('span', {class: 'meter ' + (kind || ''), role: 'img', 'aria-label': label}, el('span', {style: {width: width + '%'}}));
}

function number(n) { return Math.round(n).toLocaleString('en'); }

function bytes(n) {
  for (const unit of ['B', 'KiB', 'MiB', 'GiB']) {
    if (n < 1024 || unit === 'GiB') return (unit === 'B' || n >= 100 ? Math.round(n) : n.toFixed(1)) + ' ' + unit;
    n /= 1024;
  }
}

function duration(seconds) {
  if (seconds < 0.001) return (seconds * 1e6).toFixed(0) + ' µs';
  if (seconds < 1) return (seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0) + ' ms';
  if (seconds < 90) return seconds.toFixed(seconds < 10 ? 1 : 0) + ' s';
  if (seconds < 5400) return Math.round(seconds / 60) + ' min';
  if (seconds < 129600) return Math.round(seconds / 3600) + ' h';
  return Math.round(seconds / 86400) + ' days';
}

function ago(time) {
  const seconds = (Date.now() - Date.parse(time)) / 1000;
  return seconds < 1 ? 'now' : (seconds < 90 ? Math.floor(seconds) + ' s' : duration(seconds)) + ' ago';
}

// clock is a time in the browser's zone, with date and zone: 2026-11-28 06:30:15.123 +01:00.
function clock(time) {
  const t = new Date(time);
  if (isNaN(t)) return 'time unknown';
  const two = n => String(n).padStart(2, '0'), east = -t.getTimezoneOffset(), off = Math.abs(east);
  const zone = off === 0 ? 'UTC' : (east < 0 ? '−' : '+') + two(Math.floor(off / 60)) + ':' + two(off % 60);
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}.${String(t.getMilliseconds()).padStart(3, '0')} ${zone}`;
}

// short is JSON in one line, cut.
function short(value, most = 80) {
  if (value === undefined) return '—';
  const text = typeof value === 'string' ? value : JSON.stringify(value);
  return text.length > most ? text.slice(0, most - 1) + '…' : text;
}
