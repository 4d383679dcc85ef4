//! The page around the sections: head, style, script, and a content security policy that forbids all
//! requests.

use sha2::{Digest, Sha256};

use super::html::escape;
use super::run::Run;
use super::{completions, headline, sections, settings};

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

/// Renders the full HTML document.
pub(super) fn render(run: &Run) -> String {
    let plots: String = sections::of_run(run)
        .iter()
        .map(|section| {
            let figures: String = section.plots.iter().filter_map(|plot| plot.to_html()).collect();
            format!("<section><h2>{}</h2><div class=\"plots\">{figures}</div></section>\n", section.title)
        })
        .collect();
    let body = [headline::render(run), plots, completions::render(run), settings::render(run)].concat();
    // Only the script with this nonce runs. It is a digest of the body, so text of a model cannot contain it.
    let nonce = nonce(&body);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; \
         style-src 'unsafe-inline'; script-src 'nonce-{nonce}'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n{body}</main>\n<script nonce=\"{nonce}\">\n{SCRIPT}</script>\n</body>\n</html>\n",
        title = escape(&run.name),
    )
}

fn nonce(body: &str) -> String {
    Sha256::digest(body.as_bytes()).iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}
