//! The prefix index: which worker holds how much of a prompt.
