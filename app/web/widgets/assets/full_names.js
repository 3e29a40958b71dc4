// The full form of a truncated name: hovering shows the title; keyboard focus shows a tip next to the element.

class FullNames {
  constructor(root, tip) {
    this.tip = tip;
    root.addEventListener("focusin", (e) => this.show(e.target));
    root.addEventListener("focusout", () => (this.tip.hidden = true));
    root.addEventListener("scroll", () => (this.tip.hidden = true), { capture: true, passive: true });
  }

  show(target) {
    const full = target instanceof Element && target.matches(":focus-visible") && target.title;
    const name = full && (target.querySelector(".name") || target);
    const cut = name && (name.scrollWidth > name.clientWidth + 1 || name.scrollHeight > name.clientHeight + 1);
    this.tip.hidden = !(name && (cut || name.textContent.trim() !== full.trim()));
    if (this.tip.hidden) return;
    this.tip.textContent = full;
    const box = target.getBoundingClientRect();
    const own = this.tip.getBoundingClientRect();
    const left = Math.max(8, Math.min(box.left, window.innerWidth - own.width - 8));
    const above = box.top - own.height - 6;
    this.tip.style.setProperty("left", `${left}px`);
    this.tip.style.setProperty("top", `${above > 8 ? above : box.bottom + 6}px`);
  }
}
