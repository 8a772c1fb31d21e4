// The objects, now or as they were: kubectl's tables, and of one object its owners and dependents, its document and its own changes.

const asTable = 'application/json;as=Table;g=meta.k8s.io;v=v1';
const asMetadata = 'application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1';
const chunkSize = 500;    // objects that are asked for at once
const listMost = 5000;    // that are in a list
const atOnce = 4;         // requests for a tree
const lookedMost = 20000; // objects that are looked through for it, unless somebody asks to look on
const treeMost = 300;     // that are drawn in it,
const treeMore = 100;     // and so many more whenever somebody asks

const first = ['deployments', 'statefulsets', 'daemonsets', 'jobs', 'cronjobs', 'pods', 'services', 'configmaps']; // what people look for

// each runs work for all items, a few at a time.
async function each(items, work) {
  const queue = [...items];
  await Promise.all(Array.from({length: atOnce}, async () => { while (queue.length) await work(queue.shift()); }));
}

function objects(app) {
  let known = [], knownAt = -1, chosen = null, stop = new AbortController();
  const kind = el('select', {name: 'kind', 'aria-label': 'Kind', onchange: () => go(known[kind.value], null)});
  const namespace = el('input', {name: 'namespace', placeholder: 'namespace', 'aria-label': 'Namespace', autocomplete: 'off', spellcheck: 'false', onchange: () => list()});
  const labels = el('input', {name: 'labelSelector', placeholder: 'labels: app=x', 'aria-label': 'Labels', autocomplete: 'off', spellcheck: 'false', onchange: () => list()});
  const listing = el('div', {class: 'scroll'}), detail = el('div', {class: 'detail'});
  let current = null;

  async function types() {
    if (knownAt === app.at && known.length) return;
    known = (await app.types(app.at)).map(r => ({...r}));
    knownAt = app.at;
    const counts = new Map((app.data?.store.resources || []).map(r => [r.group + '/' + r.resource, r.objects]));
    known.forEach(r => { r.count = counts.get(r.group + '/' + r.resource) || (r.group === 'events.k8s.io' ? counts.get('/events') : 0) || 0; });
    const rank = r => r.count ? (first.indexOf(r.resource) + first.length + 1) % (first.length + 1) : 2 * first.length;
    known.sort((a, b) => rank(a) - rank(b) || a.kind.localeCompare(b.kind));
    kind.replaceChildren(...known.map((r, i) => el('option', {value: i}, r.kind + (r.group ? ' · ' + r.group : '') + (r.count && !app.at ? ' (' + r.count + ')' : ''))));
  }

  function find(group, resource) { return known.find(r => r.group === group && r.resource === resource); }

  async function begin(target) {
    try {
      await types();
    } catch (err) {
      return app.tell(err);
    }
    if (target) {
      current = find(target.group, target.resource) || {...target, namespaced: !!target.namespace, version: target.version || 'v1'};
      if (target.namespace) namespace.value = target.namespace;
      chosen = target.name ? target : null;
    }
    current ||= known[0];
    if (!current) return;
    kind.value = known.indexOf(current);
    await list();
    if (chosen) await inspect(chosen);
  }

  function go(res) {
    current = res;
    chosen = null;
    detail.replaceChildren();
    list();
  }

  async function list() {
    stop.abort();
    const mine = stop = new AbortController();
    const scope = current.namespaced ? namespace.value.trim() : '', query = {limit: chunkSize};
    if (labels.value.trim()) query.labelSelector = labels.value.trim();
    let columns, body, shown = 0;
    const more = el('button', {type: 'button', onclick: () => chunk()}, 'More'), note = el('p', {class: 'row', role: 'status'});

    // chunk shows the next objects below those that are there.
    async function chunk() {
      more.disabled = true;
      try {
        const answer = await (await ask(at(app.at, collection(current, scope)) + '?' + parameters(query), asTable, mine.signal)).json();
        columns ||= (answer.columnDefinitions || []).map((c, i) => [c, i]).filter(([c]) => c.priority === 0 && c.name !== 'Created At');
        const heads = columns.map(([c]) => ({text: c.name, num: c.type === 'integer'}));
        if (current.namespaced && !scope) heads.unshift('Namespace');
        const rows = (answer.rows || []).map(r => {
          const meta = r.object.metadata, cells = columns.map(([, i]) => String(r.cells[i] ?? ''));
          if (current.namespaced && !scope) cells.unshift(meta.namespace);
          return {cells, open: () => inspect({...current, namespace: meta.namespace, name: meta.name})};
        });
        const made = table(heads, rows, app.at ? 'There were no objects.' : 'There are no objects.');
        if (body) body.append(...made.querySelectorAll('tbody tr'));
        else { listing.replaceChildren(made, note); body = made.querySelector('tbody'); }
        shown += rows.length;
        query.continue = answer.metadata?.continue;
        const left = answer.metadata?.remainingItemCount;
        note.replaceChildren(...(!query.continue ? [] : shown >= listMost ? ['Showing the first ' + number(shown) + ' objects. Filter by namespace or labels to see others.'] :
          [more, el('span', {class: 'muted small'}, left === undefined ? 'more' : number(left) + ' more')]));
      } catch (err) {
        if (mine.signal.aborted) return;
        if (body) note.replaceChildren(err.message);
        else listing.replaceChildren(el('p', {class: 'empty'}, err.message));
      }
      more.disabled = false;
    }
    await chunk();
  }

  async function inspect(target) {
    chosen = target;
    app.remember('objects', [target.group || '-', target.resource, target.namespace || '-', target.name]);
    const res = find(target.group, target.resource) || target;
    const path = at(app.at, collection(res, target.namespace, target.name));
    const tree = el('div', {class: 'tree'}, el('p', {class: 'muted'}, 'loading …'));
    const doc = el('pre', {tabindex: '0', 'aria-label': 'Object as YAML'}), past = el('div', {class: 'timeline'});
    detail.replaceChildren(
      el('h2', {}, el('span', {class: 'kind'}, res.kind), ' ', target.namespace ? el('span', {class: 'muted'}, target.namespace + '/') : '', target.name),
      el('h3', {}, 'Owners and dependents'), tree, el('h3', {}, 'Changes'), past,
      el('details', {class: 'document'}, el('summary', {}, 'Document'), doc));
    detail.scrollIntoView({block: 'nearest'});
    try {
      const meta = await (await ask(path, 'application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1')).json();
      await Promise.all([
        ask(path, 'application/yaml').then(a => a.text()).then(text => { doc.textContent = text; }),
        family(res, meta.metadata, tree).catch(err => tree.replaceChildren(el('p', {class: 'empty'}, err.message))),
        history(res, target, past),
      ]);
    } catch (err) {
      tree.replaceChildren(el('p', {class: 'empty'}, err.message));
      history(res, target, past);
    }
  }

  async function history(res, target, past) {
    const query = {resource: res.resource + (res.group ? '.' + res.group : ''), name: target.name, tail: 200};
    if (app.at) query.until = app.at;
    if (target.namespace) query.namespace = target.namespace;
    const found = [];
    try {
      for await (const change of changes(query, null)) if (change.revision) found.push(change);
    } catch (err) {
      return past.replaceChildren(el('p', {class: 'empty'}, err.message));
    }
    past.replaceChildren(...(found.length ? found.reverse().map(change => row(app, change)) : [el('p', {class: 'empty'}, 'No changes in the history.')]));
  }

  // family reads the metadata of all that may be related to an object: its namespace, and what of the cluster owns it. Of what has no owner
  // nothing is kept but what turns out to be one.
  async function family(res, meta, tree, most = lookedMost) {
    const byUID = new Map(), from = app.at;
    const note = (r, m) => { if (!byUID.has(m.uid)) byUID.set(m.uid, {res: r, meta: m, below: []}); return byUID.get(m.uid); };
    const self = note(res, meta);
    let looked = 0, cut = false;
    const relevant = known.filter(r => (r.count > 0 || from) && !['events', 'leases', 'endpoints'].includes(r.resource) && (r.namespaced || !meta.namespace));
    await each(relevant, async r => {
      const query = {limit: chunkSize};
      try {
        do {
          const answer = await (await ask(at(from, collection(r, r.namespaced ? meta.namespace : '')) + '?' + parameters(query), asMetadata)).json();
          query.continue = answer.metadata?.continue;
          for (const item of answer.items || []) if (item.metadata.ownerReferences) note(r, item.metadata);
          looked += (answer.items || []).length;
        } while (query.continue && looked < most && chosen?.name === meta.name);
        cut ||= !!query.continue;
      } catch { /* a kind that the user may not list is left out */ }
    });
    for (let todo = [self]; todo.length;) { // owners of the cluster
      const owners = (todo.pop().meta.ownerReferences || []).filter(o => !byUID.has(o.uid));
      for (const o of owners) {
        const [group] = o.apiVersion.includes('/') ? o.apiVersion.split('/') : [''];
        const r = known.find(k => k.kind === o.kind && k.group === group);
        try {
          const doc = await json(at(from, collection(r, r.namespaced ? meta.namespace : '', o.name)));
          if (doc.metadata.uid === o.uid) todo.push(note(r, doc.metadata));
          else throw new Error('another one');
        } catch {
          note({kind: o.kind, missing: true}, {uid: o.uid, name: o.name});
        }
      }
    }
    for (const one of byUID.values()) for (const o of one.meta.ownerReferences || []) byUID.get(o.uid)?.below.push(one);
    const roots = new Set(), climbed = new Set();
    (function climb(one) {
      if (climbed.has(one)) return;
      climbed.add(one);
      const owners = (one.meta.ownerReferences || []).map(o => byUID.get(o.uid)).filter(Boolean);
      if (owners.length === 0) roots.add(one);
      owners.forEach(climb);
    })(self);
    const drawn = new Set(), on = () => { tree.replaceChildren(el('p', {class: 'muted'}, 'loading …')); family(res, meta, tree, 10 * most); };
    tree.replaceChildren(el('ul', {}, twigs([...(roots.size ? roots : [self])], self, drawn, {left: treeMost})),
      drawn.size === 1 ? el('p', {class: 'muted small'}, 'No owners and no dependents' + (cut ? ' among the objects searched.' : '.')) : '',
      cut ? el('p', {class: 'row'}, el('button', {type: 'button', onclick: on}, 'Search further'), el('span', {class: 'muted small'}, number(looked) + ' objects were searched; there are more.')) : '');
  }

  // twigs are branches side by side: as many as there is room for, and a button for the others.
  function twigs(all, self, drawn, room) {
    const shown = [];
    while (shown.length < all.length && room.left > 0) {
      room.left--;
      shown.push(branch(all[shown.length], self, drawn, room));
    }
    const rest = all.slice(shown.length);
    if (rest.length === 0) return shown;
    const more = el('li', {}, el('button', {type: 'button', class: 'plain more', onclick: () => more.replaceWith(...twigs(rest, self, drawn, {left: treeMore}))}, number(rest.length) + ' more'));
    return [...shown, more];
  }

  function branch(one, self, drawn, room) {
    const again = drawn.has(one);
    drawn.add(one);
    const {res, meta} = one, name = [el('span', {class: 'kind'}, res.kind), ' ', meta.name];
    const label = one === self ? el('strong', {'aria-current': 'true'}, name) : res.missing ? el('span', {class: 'gone'}, name, ' (missing)') :
      el('button', {type: 'button', class: 'plain', onclick: () => inspect({...res, namespace: meta.namespace, name: meta.name})}, name);
    const notes = [meta.deletionTimestamp && el('span', {class: 'tag removed'}, 'deleting'), ...(meta.finalizers || []).map(f => el('span', {class: 'tag'}, f)),
      meta.creationTimestamp && el('span', {class: 'muted small'}, ago(meta.creationTimestamp))];
    const below = again ? [] : one.below.sort((a, b) => a.res.kind.localeCompare(b.res.kind) || a.meta.name.localeCompare(b.meta.name));
    return el('li', {}, label, ' ', notes, below.length ? el('ul', {}, twigs(below, self, drawn, room)) : '');
  }

  return {
    id: 'objects', name: 'Objects',
    node: el('section', {class: 'panel'}, el('form', {class: 'filters', onsubmit: e => { e.preventDefault(); list(); }}, kind, namespace, labels),
      el('div', {class: 'columns'}, listing, detail)),
    show: begin, travelled: () => { knownAt = -1; begin(chosen); },
    hide: () => stop.abort(),
  };
}
