// Keys go to the terminal from the moment on that it is connected: textual.js leaves that to a click.
addEventListener("load", () => {
  const connected = new MutationObserver(() => {
    if (!document.body.classList.contains("-loaded")) return;
    connected.disconnect();
    document.querySelector(".xterm-helper-textarea").focus();
  });
  connected.observe(document.body, { attributeFilter: ["class"] });
});
