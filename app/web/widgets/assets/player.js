// Plays one clip at a time: play, replay, speed, loop, and the playhead on the spectrogram and the waveform.

const SPEEDS = [0.5, 0.75, 1, 1.25, 1.5, 2];

class Player {
  constructor(parts) {
    this.parts = parts; // toggle, clock, head, played (svg clip rect), speed, loop, autoplay
    this.audio = null;
    this.seconds = 0;
    this.speed = 1;
    this.looping = false;
    this.automatic = true;
    this.gestured = Boolean(navigator.userActivation && navigator.userActivation.hasBeenActive);
    this.frame = 0;
    this.tick = () => this.follow();
    this.showSettings();
  }

  load(audio, seconds) {
    this.stop();
    this.audio = audio;
    this.seconds = seconds || 0;
    if (audio) {
      audio.onended = () => this.paint();
      audio.onpause = () => this.paint();
      audio.currentTime = 0;
    }
    this.paint();
    if (audio && this.automatic && this.gestured) this.play();
  }

  play() {
    if (!this.audio) return;
    this.audio.playbackRate = this.speed;
    this.audio.loop = this.looping;
    this.audio.play().catch(() => this.paint()); // browsers refuse to play before the first user gesture
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(this.tick);
  }

  replay() {
    if (!this.audio) return;
    this.audio.currentTime = 0;
    this.play();
  }

  toggle() {
    if (!this.audio) return;
    if (this.audio.paused) this.play();
    else this.audio.pause();
  }

  stop() {
    cancelAnimationFrame(this.frame);
    if (this.audio) {
      this.audio.onended = null;
      this.audio.onpause = null;
      this.audio.pause();
      this.audio = null;
    }
  }

  seek(share) {
    if (!this.audio || !this.seconds) return;
    this.audio.currentTime = Math.max(0, Math.min(1, share)) * this.seconds;
    this.paint();
  }

  changeSpeed(step) {
    const at = SPEEDS.indexOf(this.speed);
    this.speed = SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, at + step))];
    if (this.audio) this.audio.playbackRate = this.speed;
    this.showSettings();
  }

  toggleLoop() {
    this.looping = !this.looping;
    if (this.audio) this.audio.loop = this.looping;
    this.showSettings();
  }

  toggleAutoplay() {
    this.automatic = !this.automatic;
    this.showSettings();
  }

  showSettings() {
    this.parts.speed.textContent = `${this.speed.toFixed(this.speed * 10 % 1 ? 2 : 1)}×`;
    this.parts.loop.setAttribute("aria-pressed", String(this.looping));
    this.parts.autoplay.setAttribute("aria-pressed", String(this.automatic));
  }

  follow() {
    this.paint();
    if (this.audio && !this.audio.paused) this.frame = requestAnimationFrame(this.tick);
  }

  paint() {
    const heard = this.audio ? this.audio.currentTime : 0; // a decoder may play slightly more than the duration in the file
    const at = this.seconds ? Math.min(heard, this.seconds) : heard;
    const share = this.seconds ? at / this.seconds : 0;
    const playing = Boolean(this.audio && !this.audio.paused);
    this.parts.head.style.setProperty("--at", String(share));
    this.parts.played.setAttribute("width", String(share * 100));
    this.parts.toggle.dataset.playing = String(playing);
    this.parts.toggle.setAttribute("aria-label", playing ? "Pause" : "Play");
    this.parts.clock.replaceChildren(element("span", {}, at.toFixed(2)), ` / ${this.seconds.toFixed(2)} s`);
  }
}

// The waveform as one path of rounded bars in a 100 × 100 box, drawn twice: the track, and the played part clipped.
function barsPath(peaks) {
  const step = 100 / peaks.length;
  return peaks
    .map((peak, i) => {
      const half = Math.max(1.5, peak * 50);
      const x = (i + 0.18) * step;
      const w = step * 0.64;
      return `M${x.toFixed(3)} ${(50 - half).toFixed(2)}h${w.toFixed(3)}v${(2 * half).toFixed(2)}h${(-w).toFixed(3)}z`;
    })
    .join("");
}
