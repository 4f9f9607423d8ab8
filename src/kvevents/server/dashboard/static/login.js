// Exchanges the token for a session. Without this script the form does the same and says less.
import { applyTheme } from "./theme.js";

applyTheme();
const form = document.getElementById("login");
const problem = document.getElementById("problem");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  problem.textContent = "";
  try {
    const response = await fetch("/login", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ token: form.token.value }),
    });
    if (response.ok) {
      location.replace("/");
      return;
    }
    problem.textContent = await said(response);
  } catch {
    problem.textContent = "The router does not answer.";
  }
  button.disabled = false;
  form.token.select();
});

async function said(response) {
  try {
    return `Not let in: ${(await response.json()).error.message}.`;
  } catch {
    return `Not let in: the router answered ${response.status}.`;
  }
}
