// Keeps an open page up to date: the server sends the page again whenever it has changed, and this replaces the parts that differ.
'use strict';
(() => {
  const live = document.getElementById('live');
  const state = document.getElementById('state');
  const silence = 20000; // ms without an event from the server, which sends one at least every 5 s
  let source = null, retry = 0, heard = 0;

  function tell(name, text) {
    if (state.dataset.state === name) return;
    state.dataset.state = name;
    state.textContent = text;
  }

  function close() {
    clearTimeout(retry);
    if (source) source.close();
    source = null;
  }

  function open() {
    close();
    heard = Date.now();
    source = new EventSource(location.href);
    const hear = () => { heard = Date.now(); tell('live', 'live'); };
    source.addEventListener('tick', hear);
    source.onmessage = (event) => {
      hear();
      const page = new DOMParser().parseFromString('<div id="live">' + event.data + '</div>', 'text/html');
      const focused = document.activeElement;
      morph(live, page.getElementById('live'));
      if (focused !== document.activeElement && focused.isConnected) focused.focus({preventScroll: true});
    };
    source.onerror = () => {
      tell('lost', 'not connected, trying again');
      // After a response that is not an event stream, the browser does not reconnect.
      if (source && source.readyState === EventSource.CLOSED) { close(); retry = setTimeout(open, 2000); }
    };
  }

  function watch() {
    if ('still' in live.dataset) return; // the page is not updated, so the user's input in it stays
    if (document.hidden) { close(); tell('paused', 'paused'); } else open();
  }

  // morph makes a node equal to another one. It does not touch the parts that are equal, so they keep focus, selection and scroll position.
  function morph(have, want) {
    if (have.nodeType !== Node.ELEMENT_NODE) {
      if (have.data !== want.data) have.data = want.data;
      return;
    }
    for (const a of [...have.attributes]) {
      if (!want.hasAttribute(a.name) && !(a.name === 'open' && have.nodeName === 'DETAILS')) have.removeAttribute(a.name);
    }
    for (const a of want.attributes) {
      if (have.getAttribute(a.name) !== a.value) have.setAttribute(a.name, a.value);
    }
    const keyed = new Map([...have.children].filter((c) => c.dataset.key).map((c) => [c.dataset.key, c]));
    let at = have.firstChild;
    for (const next of [...want.childNodes]) {
      const key = keyOf(next);
      const same = key ? keyed.get(key) : at;
      if (same && same.nodeType === next.nodeType && same.nodeName === next.nodeName && keyOf(same) === key) {
        if (same === at) at = at.nextSibling; else have.insertBefore(same, at);
        morph(same, next);
      } else {
        have.insertBefore(document.importNode(next, true), at);
      }
    }
    while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
  }

  function keyOf(node) { return (node.dataset && node.dataset.key) || ''; }

  setInterval(() => { if (source && Date.now() - heard > silence) { tell('lost', 'not connected, trying again'); open(); } }, 5000);
  document.addEventListener('visibilitychange', watch);
  addEventListener('pagehide', close);
  addEventListener('pageshow', (event) => { if (event.persisted) watch(); });
  document.addEventListener('keydown', (event) => {
    if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.nodeName)) return;
    const filter = document.querySelector('input[type=search]');
    if (filter) { event.preventDefault(); filter.focus(); filter.select(); }
  });
  watch();
})();
