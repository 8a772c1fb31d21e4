// How the panels ask the server. Everything is a GET below the folder that the page lies in, so that it works behind kubectl proxy, too.

const root = new URL('../../', document.baseURI);
const key = 'apilet-token';

const token = {
  get: () => sessionStorage.getItem(key) || '',
  set: value => value ? sessionStorage.setItem(key, value) : sessionStorage.removeItem(key),
};

// A Refusal is an answer that is no success, with the server's own words.
class Refusal extends Error {
  constructor(code, message, retryAfter) {
    super(message);
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

async function ask(path, accept, signal) {
  const headers = {Accept: accept};
  if (token.get()) headers.Authorization = 'Bearer ' + token.get();
  const answer = await fetch(new URL(path, root), {headers, signal, cache: 'no-store', redirect: 'error'});
  if (answer.ok) return answer;
  let message = answer.status + ' ' + answer.statusText;
  try { message = (await answer.json()).message || message; } catch { /* no Status: the code has to do */ }
  throw new Refusal(answer.status, message, Number(answer.headers.get('Retry-After')) || 0);
}

async function json(path, signal) { return (await ask(path, 'application/json', signal)).json(); }

// lines gives what a body says line by line, as it comes.
async function* lines(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      const parts = (rest + value).split('\n');
      rest = parts.pop();
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// parameters are those of a query, whose values may be lists; what is undefined is not asked for.
function parameters(query) {
  return new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined).flatMap(([name, value]) => [value].flat().map(one => [name, one])));
}

// changes reads the last changes of /debug/history that a query asks for, as many as its tail says; before them {earlier: REV} where there are more.
async function* changes(query, signal) {
  let next = query;
  while (next) {
    const answer = await ask('debug/history?' + parameters(next), 'application/x-ndjson, application/json', signal);
    next = undefined;
    for await (const line of lines(answer)) {
      if (!line.trim()) continue;
      const doc = JSON.parse(line);
      if (doc.message) throw new Refusal(doc.code, doc.message);
      if (doc.continue) next = {...query, tail: undefined, after: doc.continue};
      if (doc.revision || doc.earlier) yield doc;
    }
  }
}

// follow reads server-sent events of /debug/history for as long as the signal lets it. told is called for each, state with "live" or why
// it is not. What comes first is the tail that the query asks for. (An EventSource would do the same, but cannot show a token.)
async function follow(query, signal, told, state) {
  let after, wait = 500;
  while (!signal.aborted) {
    try {
      const answer = await ask('debug/history?' + parameters({...query, tail: after ? undefined : query.tail, after, follow: 'true'}), 'text/event-stream', signal);
      state('live');
      let data = '';
      for await (const raw of lines(answer)) {
        wait = 500;
        const line = raw.replace(/\r$/, '');
        if (line.startsWith('data:')) data += line.slice(5).trim();
        else if (line.startsWith('id:')) after = line.slice(3).trim() || after;
        else if (line === '' && data) {
          const doc = JSON.parse(data);
          if (doc.revision || doc.earlier) told(doc);
          else if (doc.message) throw new Refusal(doc.code || 0, doc.message);
          data = '';
        }
      }
      state('the stream has ended; reconnecting');
    } catch (err) {
      if (signal.aborted) return;
      state(err.message, err.code);
      if (err.code === 410 || err.code === 400) return; // to ask the same again is no use
      wait = Math.max(wait, (err.retryAfter || 0) * 1000);
    }
    await new Promise(done => setTimeout(done, wait));
    wait = Math.min(wait * 2, 15000);
  }
}

// at puts the moment that is shown before a path of the API.
function at(revision, path) { return revision ? 'at/' + revision + '/' + path : path; }

// collection is the path of a resource, or of one object of it.
function collection(res, namespace, name) {
  const parts = res.group ? ['apis', res.group, res.version] : ['api', res.version];
  if (namespace) parts.push('namespaces', namespace);
  parts.push(res.resource);
  if (name) parts.push(name);
  return parts.map(encodeURIComponent).join('/');
}

const aggregated = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList';

// resources lists what can be listed, in the version that each group prefers.
async function resources(revision) {
  const found = [];
  for (const path of ['api', 'apis']) {
    const list = await (await ask(at(revision, path), aggregated)).json();
    for (const group of list.items || []) {
      const seen = new Set();
      for (const version of group.versions || []) for (const r of version.resources || []) {
        if (seen.has(r.resource) || !(r.verbs || []).includes('list')) continue;
        seen.add(r.resource);
        found.push({group: group.metadata?.name || '', version: version.version, resource: r.resource, kind: r.responseKind?.kind || r.resource,
          namespaced: r.scope === 'Namespaced', shortNames: r.shortNames || []});
      }
    }
  }
  return found;
}
