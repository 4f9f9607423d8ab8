// Light or dark: as the system has it, unless it was chosen here. What was chosen stays in this browser.
const KEY = "kvevents-theme";
const CHOICES = ["auto", "light", "dark"];
const SIGNS = { auto: "◑ Auto", light: "○ Light", dark: "● Dark" };

function chosen() {
  try {
    const value = localStorage.getItem(KEY);
    return CHOICES.includes(value) ? value : "auto";
  } catch {
    return "auto";
  }
}

export function applyTheme() {
  const choice = chosen();
  if (choice === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice;
  return choice;
}

export function startTheme(button, onChange) {
  const show = () => {
    const choice = applyTheme();
    button.textContent = SIGNS[choice];
    button.setAttribute("aria-label", `Colours: ${choice}. Press to change.`);
    onChange();
  };
  button.addEventListener("click", () => {
    const next = CHOICES[(CHOICES.indexOf(chosen()) + 1) % CHOICES.length];
    try {
      localStorage.setItem(KEY, next);
    } catch {
      document.documentElement.dataset.theme = next;
    }
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}
