// The page: panels as tabs, the moment that is shown, the token, and the document that the panels draw.

const $ = id => document.getElementById(id);
const page = Array.from(crypto.getRandomValues(new Uint8Array(8)), b => b.toString(16).padStart(2, '0')).join('');
const pollEvery = 1000;

// What the panels know of the page. at is the revision that is shown; 0: now.
const app = {
  at: 0, data: null,
  tell, travel, needToken, types, resolve,
  openObject: (target, revision) => { if (revision) setMoment(revision); show('objects', target); },
  openPanel: id => show(id),
  openList: r => show('objects', {group: r.group, resource: r.resource}),
  remember: (panel, parts) => history.replaceState(null, '', address(panel, parts)),
};

const panels = [timeline, objects, flowControl, watches, findings, deprecations, store].map(make => make(app));
let current = null;

function address(panel, parts = []) {
  return '#/' + [panel, ...parts].map(encodeURIComponent).join('/') + (app.at ? '?at=' + app.at : '');
}

// ---- Tabs

for (const [i, p] of panels.entries()) {
  p.tab = el('button', {type: 'button', role: 'tab', id: 'tab-' + p.id, 'aria-controls': 'panel-' + p.id, 'aria-keyshortcuts': i + 1,
    onclick: () => show(p.id)}, p.name, p.count = el('span', {class: 'count'}));
  p.node.id = 'panel-' + p.id;
  p.node.hidden = true;
  p.node.setAttribute('role', 'tabpanel');
  p.node.setAttribute('aria-labelledby', 'tab-' + p.id);
  $('tabs').append(p.tab);
  $('main').append(p.node);
}

$('tabs').addEventListener('keydown', e => {
  const step = {ArrowRight: 1, ArrowLeft: -1}[e.key];
  if (!step) return;
  e.preventDefault();
  const next = panels[(panels.indexOf(current) + step + panels.length) % panels.length];
  show(next.id);
  next.tab.focus();
});

function show(id, target) {
  const next = panels.find(p => p.id === id) || panels[0];
  if (current !== next) current?.hide?.();
  current = next;
  for (const p of panels) {
    p.node.hidden = p !== next;
    p.tab.setAttribute('aria-selected', p === next);
    p.tab.tabIndex = p === next ? 0 : -1;
  }
  next.tab.scrollIntoView({block: 'nearest', inline: 'nearest'});
  history.replaceState(null, '', address(next.id));
  tell(null);
  next.show(target);
}

// types are what the API serves at a revision. Those of now are asked for again when they may have changed.
const typesKept = {at: -1, when: 0, list: null};

function types(at) {
  if (typesKept.at !== at || Date.now() - typesKept.when > 10000) Object.assign(typesKept, {at, when: Date.now(), list: resources(at)});
  return typesKept.list;
}

// resolve is PLURAL.GROUP for what kubectl would take for a kind.
async function resolve(text) {
  const word = text.trim().toLowerCase(), name = r => r.resource + (r.group ? '.' + r.group : '');
  const list = await types(0).catch(() => []);
  const found = list.find(r => name(r) === word || r.resource === word || r.kind.toLowerCase() === word || r.shortNames.includes(word));
  return found ? name(found) : word;
}

// ---- Problems and the token

function tell(err) {
  $('problem').hidden = !err;
  $('problem').textContent = err ? err.message || err : '';
  if (err?.code === 401 || err?.code === 403 && !token.get() && app.data === null) needToken();
}

function needToken() { if (!$('token-dialog').open) $('token-dialog').showModal(); }

$('token-button').addEventListener('click', needToken);
$('help-button').addEventListener('click', () => $('help-dialog').showModal());
$('token-dialog').addEventListener('close', () => {
  const answer = $('token-dialog').returnValue;
  if (answer === 'set') token.set($('token').value.trim());
  if (answer === 'clear') token.set('');
  $('token').value = '';
  if (answer !== 'cancel') poll().then(() => show(current.id));
});

// ---- The moment

let settle = 0;

function setMoment(revision) {
  const newest = app.data?.store.revision || 0;
  app.at = revision >= newest || revision < 1 ? 0 : Math.max(revision, app.data.store.compacted, 1);
  drawMoment();
}

function travel(revision) {
  setMoment(revision);
  clearTimeout(settle);
  settle = setTimeout(() => {
    history.replaceState(null, '', location.hash.split('?')[0] + (app.at ? '?at=' + app.at : ''));
    current.travelled?.();
    tellTime();
  }, 150);
}

function drawMoment() {
  const slider = $('slider'), s = app.data?.store;
  if (!s) return;
  slider.min = Math.max(1, s.compacted);
  slider.max = s.revision;
  slider.value = app.at || s.revision;
  document.body.classList.toggle('past', app.at !== 0);
  $('live').disabled = app.at === 0;
  if (app.at === 0) $('moment-text').textContent = 'Now · revision ' + number(s.revision);
  else if (!$('moment-text').textContent.startsWith('Revision ' + number(app.at))) $('moment-text').textContent = 'Revision ' + number(app.at);
  slider.setAttribute('aria-valuetext', $('moment-text').textContent);
}

// tellTime finds out when the revision that is shown was made.
async function tellTime() {
  const at = app.at;
  if (!at) return;
  try {
    for await (const change of changes({after: at - 1, until: at}, null)) {
      if (app.at === at && change.time) $('moment-text').textContent = 'Revision ' + number(at) + ' · ' + clock(change.time);
      return;
    }
  } catch { /* the revision alone, then */ }
}

$('slider').addEventListener('input', () => travel(Number($('slider').value)));
$('live').addEventListener('click', () => travel(0));
$('earlier').addEventListener('click', () => travel((app.at || app.data.store.revision) - 1));
$('later').addEventListener('click', () => app.at && travel(app.at + 1));

// ---- The document

let timer = 0;

async function poll() {
  clearTimeout(timer);
  let wait = pollEvery;
  if (document.hidden) return;
  try {
    const first = app.data === null;
    app.data = await json('debug/ui/data?page=' + page);
    connected(true, 'connected');
    $('version').textContent = app.data.version;
    drawMoment();
    for (const p of panels) {
      p.sample?.(app.data);
      const count = p.badge?.(app.data);
      p.count.textContent = count ? count : '';
    }
    if (first) begin();
    else current.draw?.(app.data);
    if (!$('problem').hidden && $('problem').dataset.of === 'poll') tell(null);
  } catch (err) {
    connected(false, err instanceof Refusal ? 'refused' : 'no response');
    tell(err);
    $('problem').dataset.of = 'poll';
    wait = Math.max(3000, 1000 * (err.retryAfter || 0));
  }
  timer = setTimeout(poll, wait);
}

function connected(well, text) {
  $('dot').className = 'dot ' + (well ? 'good' : 'bad');
  if ($('status').textContent !== text) $('status').textContent = text;
}

// begin shows what the address says, once there is something to show.
function begin() {
  const [path, query] = location.hash.slice(2).split('?');
  const [panel, group, resource, namespace, name] = path.split('/').map(decodeURIComponent);
  const at = Number(new URLSearchParams(query).get('at'));
  if (at > 0) setMoment(at);
  show(panel, name && {group: group === '-' ? '' : group, resource, namespace: namespace === '-' ? '' : namespace, name});
}

window.addEventListener('hashchange', begin);

// A page that nobody looks at asks for nothing.
document.addEventListener('visibilitychange', () => {
  if (document.hidden) {
    clearTimeout(timer);
    current?.hide?.();
  } else poll().then(() => current?.show());
});

// ---- Keys

function step(by) {
  const rows = [...current.node.querySelectorAll('summary, tr.link')].filter(r => r.offsetParent !== null);
  if (rows.length === 0) return;
  const here = rows.indexOf(document.activeElement);
  const next = rows[Math.min(rows.length - 1, Math.max(0, here < 0 ? 0 : here + by))];
  next.focus();
  next.scrollIntoView({block: 'nearest'});
}

const keys = {
  j: () => step(1), k: () => step(-1),
  '[': () => $('earlier').click(), ']': () => $('later').click(),
  '/': () => current.node.querySelector('input, select')?.focus(),
  '?': () => $('help-dialog').showModal(),
  Escape: () => travel(0),
};

document.addEventListener('keydown', e => {
  if (e.ctrlKey || e.metaKey || e.altKey || document.querySelector('dialog[open]')) return;
  if (e.target.matches('input:not([type=range]):not([type=checkbox]), select, textarea')) {
    if (e.key === 'Escape') e.target.blur();
    return;
  }
  const panel = panels[Number(e.key) - 1];
  if (panel) { show(panel.id); panel.tab.focus(); } else if (keys[e.key]) keys[e.key](); else return;
  e.preventDefault();
});

poll();
