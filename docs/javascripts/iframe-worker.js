// Browsers start no Worker for a page that was opened from the disk. Search is one, so this runs its script in a hidden
// frame of the same page instead. Named as the theme expects, which would fetch a script for it from elsewhere.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const home = new URL(url, location);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const scope = frame.contentWindow;
      const load = (address) =>
        new Promise((loaded, failed) => {
          const script = scope.document.createElement("script");
          Object.assign(script, { src: new URL(address, home).href, onload: loaded, onerror: failed });
          scope.document.body.append(script);
        });
      scope.importScripts = async (...addresses) => {
        for (const address of addresses) await load(address);
      };
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.scope = scope;
      this.ready = load(home);
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data })));
    }
  };
}
