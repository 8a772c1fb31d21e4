// The timeline: changes as they are made, the newest first, each with what it changed.

const rowsAtOnce = 300; // changes that are asked for at once
const rowsMost = 2000;  // that are kept, and shown

const noise = ['leases.coordination.k8s.io', 'events', 'endpointslices.discovery.k8s.io'];

function colour(change) { return {ADDED: 'added', DELETED: 'removed'}[change.type] || 'changed'; }

function title(change) {
  return [el('span', {class: 'kind'}, change.kind || change.resource), ' ', change.namespace ? el('span', {class: 'muted'}, change.namespace + '/') : '', el('b', {}, change.name)];
}

// value shows one side of a difference, in full in its title.
function side(kind, value) { return value === undefined ? '' : el('span', {class: kind, title: short(value, 2000)}, short(value, 400)); }

function summary(change) {
  const all = change.changes || [];
  if (all.length === 0) return change.type === 'ADDED' ? 'created' : change.type === 'DELETED' ? 'deleted' : '';
  const first = all.slice(0, 2).map(c => el('span', {class: 'change'}, el('code', {}, c.path), ' ',
    c.old === undefined ? ['+ ', short(c.new, 40)] : c.new === undefined ? ['− ', short(c.old, 40)] : [short(c.old, 40), ' → ', short(c.new, 40)]));
  return [first, all.length + (change.more || 0) > 2 ? el('span', {class: 'muted'}, ' +' + (all.length + (change.more || 0) - 2)) : ''];
}

function details(app, change) {
  const rows = (change.changes || []).map(c => el('div', {class: 'diff'}, el('code', {}, c.path), el('div', {}, side('old', c.old), side('new', c.new))));
  const open = at => () => app.openObject(change, at);
  return el('div', {class: 'details'},
    el('p', {class: 'muted small'}, `revision ${change.revision} · ${change.verb || change.type} · ${change.time || 'time unknown'}`, el('br'),
      ['user ' + (change.user || 'unknown'), change.manager && 'manager ' + change.manager, change.agent && 'agent ' + change.agent].filter(Boolean).join(' · ')),
    rows.length ? [rows, change.more && el('p', {class: 'muted small'}, change.more + ' more')] : el('p', {class: 'empty'}, change.type === 'MODIFIED' ? 'No visible changes.' : ''),
    el('p', {class: 'row'},
      change.type !== 'DELETED' && el('button', {type: 'button', onclick: open(change.revision)}, 'Object at this revision'),
      change.type === 'DELETED' && el('button', {type: 'button', onclick: open(change.revision - 1)}, 'Object before its deletion'),
      el('button', {type: 'button', onclick: () => app.travel(change.revision)}, 'All objects at this revision')));
}

// row is one change; its details are made when it is opened.
function row(app, change) {
  const node = el('details', {class: 'change-row ' + colour(change), 'data-revision': change.revision},
    el('summary', {},
      el('time', {datetime: change.time}, change.time ? clock(change.time) : '—'),
      el('span', {class: 'verb'}, change.verb || (change.type || '').toLowerCase()),
      el('span', {class: 'what'}, title(change)),
      el('span', {class: 'who', title: change.agent}, change.manager || change.user || 'unknown'),
      el('span', {class: 'summary'}, summary(change))));
  node.addEventListener('toggle', () => { if (node.open && node.children.length === 1) node.append(details(app, change)); });
  return node;
}

function timeline(app) {
  let stop = new AbortController(), from = 0, newestSeen = 0, seen = new Set(), loaded = [], room = rowsAtOnce;
  const list = el('div', {class: 'timeline', 'aria-label': 'Changes, the newest first'});
  const state = el('p', {class: 'muted small', role: 'status'});
  const more = el('button', {type: 'button', onclick: () => earlier()}, 'Earlier');
  const quiet = el('input', {type: 'checkbox', checked: true});
  const field = (name, placeholder) => el('input', {name, placeholder, 'aria-label': placeholder, autocomplete: 'off', spellcheck: 'false'});
  const form = el('form', {class: 'filters', onsubmit: e => { e.preventDefault(); begin(); }, onchange: () => begin()},
    field('resource', 'kinds: deploy,pods'), field('namespace', 'namespace'), field('name', 'name'), field('by', 'user or manager'), field('labelSelector', 'labels: app=x'),
    el('label', {class: 'check'}, quiet, ' without leases and events'));

  // query is what the fields ask for. Kinds are named as for kubectl: deploy,pods.
  async function query() {
    const q = {};
    for (const input of form.elements) if (input.name && input.value.trim()) q[input.name] = input.value.trim();
    if (q.resource) q.resource = await Promise.all(q.resource.split(',').map(app.resolve));
    else if (quiet.checked) q.without = noise;
    return q;
  }

  function shown(change) { return app.at === 0 || change.revision <= app.at; }

  function id(change) { return change.revision + '/' + change.resource + '/' + change.namespace + '/' + change.name; }

  // add keeps a change, or where the first of them begins, and says whether it is one that was not there.
  function add(change) {
    if (change.earlier !== undefined) { from = change.earlier; return false; }
    if (seen.has(id(change))) return false;
    seen.add(id(change));
    loaded.push(change);
    return true;
  }

  // trim lets the oldest go when there are too many: they can be asked for again.
  function trim() {
    if (loaded.length <= rowsMost) return;
    loaded.sort((a, b) => b.revision - a.revision);
    for (const old of loaded.splice(rowsMost - rowsAtOnce)) {
      seen.delete(id(old));
      from = Math.max(from, old.revision);
    }
  }

  function told(change) {
    const fresh = add(change);
    more.hidden = from === 0;
    if (!fresh) return;
    trim();
    if (!shown(change)) return;
    list.querySelector(':scope > .empty')?.remove();
    list.prepend(row(app, change));
    while (list.childElementCount > room) list.lastElementChild.remove();
  }

  function draw() {
    const rows = loaded.filter(shown).sort((a, b) => b.revision - a.revision).slice(0, room).map(change => row(app, change));
    list.replaceChildren(...(rows.length ? rows : [el('p', {class: 'empty'}, 'No changes.')]));
    more.hidden = from === 0;
  }

  // load reads the last changes up to a revision, and says so where the server has none.
  async function load(until) {
    const mine = stop;
    from = 0; // unless the server says that there is more
    try {
      for await (const change of changes({...await query(), tail: rowsAtOnce, until}, mine.signal)) if (!mine.signal.aborted) add(change);
    } catch (err) {
      if (!mine.signal.aborted) state.textContent = err.message;
    }
  }

  async function begin() {
    stop.abort();
    const mine = stop = new AbortController();
    [loaded, seen, from, room] = [[], new Set(), 0, rowsAtOnce];
    if (!app.data) return;
    draw();
    if (app.at) {
      state.textContent = 'up to revision ' + app.at;
      await load(app.at);
      if (!mine.signal.aborted) draw();
      return;
    }
    const asked = await query();
    if (mine.signal.aborted) return;
    follow({...asked, tail: rowsAtOnce}, mine.signal, told, (text, code) => {
      if (mine.signal.aborted) return;
      state.textContent = text === 'live' ? 'live' : text;
      if (code === 410) setTimeout(begin, 1000);
      if (code === 401) app.needToken();
    });
  }

  // sample notices that the server is another one, whose history is not what is shown.
  function sample(data) {
    const again = data.store.revision < newestSeen && !app.at;
    newestSeen = data.store.revision;
    if (again && !stop.signal.aborted) begin();
  }

  // earlier shows a page more. From some number on it begins where it has come to instead, as the slider does.
  async function earlier() {
    const upTo = from, mine = stop;
    if (room + rowsAtOnce > rowsMost) return app.travel(upTo);
    more.disabled = true;
    room += rowsAtOnce;
    await load(upTo);
    more.disabled = false;
    if (!mine.signal.aborted) draw();
  }

  return {
    id: 'timeline', name: 'Timeline',
    node: el('section', {class: 'panel'}, form, state, list, el('p', {class: 'row'}, more)),
    show: begin, travelled: begin, sample,
    hide: () => stop.abort(),
    filter: values => { for (const input of form.elements) if (input.name) input.value = values[input.name] || ''; },
  };
}
