//! The page: one file, no script, nothing loaded from elsewhere.

use std::fmt::Write as _;

use super::svg::STYLE;
use super::{Figure, Key, Section, Table};

/// The content above and below the sections.
pub(crate) struct Page {
    /// Name of the model.
    pub(crate) model: String,
    /// Processor, and other conditions of the figures.
    pub(crate) machine: String,
    /// Duration of the report, in seconds.
    pub(crate) seconds: f64,
}

/// Renders the page as HTML.
pub(crate) fn render(page: &Page, sections: &[Section]) -> String {
    let mut html = String::with_capacity(1 << 20);
    // Writing to a string does not fail.
    let _ = write!(
        html,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"generator\" content=\"tqkv {version}\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>A compressed KV cache, measured</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<h1>What a compressed KV cache does</h1>\n\
         <p>When a transformer generates text, its key/value cache grows with every token and is read in full for every new one. \
         tqkv keeps it in 1 to 8 bits per value. This page was measured on one machine in {seconds:.0} seconds; under every plot \
         stands the command that prints its data.</p>\n\
         <p class=\"soft\">Model: {model}. Machine: {machine}.</p>\n<nav aria-label=\"Sections\">\n",
        version = env!("CARGO_PKG_VERSION"),
        seconds = page.seconds,
        model = escape(&page.model),
        machine = escape(&page.machine),
    );
    for section in sections {
        let _ = writeln!(html, "<a href=\"#{}\">{}</a>", anchor(section.title), escape(section.title));
    }
    html.push_str("</nav>\n</header>\n<main>\n");
    sections.iter().for_each(|section| put_section(&mut html, section));
    let _ = write!(
        html,
        "</main>\n<footer>\n<p>Made by tqkv {} with <code>tqkv-lab report</code>. Figures of few windows are rough: for one that is to \
         be exact, run its command with more. Times are of this machine and its load.</p>\n</footer>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    );
    html
}

fn put_section(html: &mut String, section: &Section) {
    let id = anchor(section.title);
    let _ = write!(
        html,
        "<section id=\"{id}\" aria-labelledby=\"{id}-title\">\n<h2 id=\"{id}-title\">{}</h2>\n",
        escape(section.title)
    );
    for paragraph in &section.lead {
        let _ = writeln!(html, "<p>{}</p>", escape(paragraph));
    }
    html.push_str(&section.html);
    section.figures.iter().for_each(|figure| put_figure(html, figure));
    section.tables.iter().for_each(|table| put_table(html, table));
    for command in &section.commands {
        let _ = writeln!(html, "<p class=\"command\"><code>{}</code></p>", escape(command));
    }
    html.push_str("</section>\n");
}

fn put_figure(html: &mut String, figure: &Figure) {
    let wide = figure.wide.replacen("<svg ", "<svg class=\"wide\" ", 1);
    let narrow = figure.narrow.replacen("<svg ", "<svg class=\"narrow\" ", 1);
    let label = escape(&figure.label);
    let _ = write!(html, "<figure role=\"group\" aria-label=\"{label}\">\n{wide}\n{narrow}\n<figcaption>");
    if figure.legend.is_empty() {
        html.push_str(&label);
    }
    for Key { colour, dashed, name } in &figure.legend {
        let (class, name) = (if *dashed { "key dashed" } else { "key" }, escape(name));
        let _ = write!(html, "<span class=\"{class}\" style=\"--colour:var(--c{colour})\">{name}</span>");
    }
    html.push_str("</figcaption>\n</figure>\n");
}

fn put_table(html: &mut String, table: &Table) {
    let title = escape(&table.title);
    if table.open {
        let _ = writeln!(html, "<h3>{title}</h3>");
    } else {
        let _ = writeln!(html, "<details><summary>{title}</summary>");
    }
    html.push_str("<div class=\"scroll\" tabindex=\"0\"><table><thead><tr>");
    for cell in &table.head {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(cell));
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in &table.rows {
        html.push_str("<tr>");
        for cell in row {
            // Sentences wrap, figures do not.
            let class = if cell.len() > 40 { " class=\"words\"" } else { "" };
            let _ = write!(html, "<td{class}>{}</td>", escape(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    if !table.open {
        html.push_str("</details>\n");
    }
}

fn anchor(title: &str) -> String {
    let words = title.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_lowercase()
}

/// Escapes text for HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_tables_are_whole() {
        let section = Section {
            title: "A < B & more",
            lead: vec!["<script>alert(1)</script>".into()],
            tables: vec![Table::new("data", &["x", "y"], vec![vec!["1".into(), "\"2\"".into()]])],
            commands: vec!["tqkv-lab stats \"a b\"".into()],
            ..Section::default()
        };
        let page = Page { model: "<b>".into(), machine: "m".into(), seconds: 3.4 };
        let html = render(&page, &[section]);
        assert!(!html.contains("<script") && !html.contains("<b>") && html.contains("&lt;b&gt;"), "{html}");
        assert!(html.contains("<section id=\"a-b-more\"") && html.contains("href=\"#a-b-more\""));
        assert!(html.contains("<td>1</td><td>&quot;2&quot;</td>") && html.contains("<details>"));
        assert!(html.contains("in 3 seconds"), "{html}");
        for outside in ["http:", "https:", "url(", "@import", "src="] {
            assert!(!html.replace("http://www.w3.org/2000/svg", "").contains(outside), "{outside}");
        }
    }
}
