//! The pictures of `docs`: one on each page that teaches. A chart is what its table gives.
//!
//! `TQKV_DRAW=1` draws all charts again.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{error, tqkv as lab};

/// Lists of documents, commands and programs, and walks of a token and of a request, which need no picture.
const WITHOUT: [&str; 5] = ["README.md", "command.md", "llama-server.md", "token.md", "request.md"];
/// Wider pictures are scaled down on the pages of most readers.
const WIDTH: usize = 900;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names and texts of the files in `folder` that end with `ending`.
fn files(folder: &str, ending: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = entries.filter(|path| path.extension().is_some_and(|have| have == ending)).collect();
    let text = |path: &PathBuf| fs::read_to_string(path).unwrap().replace("\r\n", "\n");
    found.iter().map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), text(path))).collect()
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    text.split_once(start)?.1.split_once(end).map(|(inner, _)| inner)
}

#[test]
fn every_chart_is_what_its_table_gives() {
    let mut charts = 0;
    for (name, svg) in files("docs/pictures", "svg") {
        let Some(command) = between(&svg, "<metadata>tqkv-lab ", "</metadata>") else { continue };
        charts += 1;
        // Every second part is the value of an option, in quotes.
        let command =
            command.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        let parts = command.split('"').enumerate();
        let words = parts
            .flat_map(|(i, part)| if i % 2 == 1 { vec![part] } else { part.split_whitespace().collect() });
        let drawn = lab(&root(), &words.chain(["-"]).collect::<Vec<_>>());
        assert!(drawn.status.success(), "{name}: {}", String::from_utf8_lossy(&drawn.stderr));
        let drawn = String::from_utf8(drawn.stdout).unwrap();
        if std::env::var_os("TQKV_DRAW").is_some_and(|value| value == "1") {
            fs::write(root().join("docs/pictures").join(&name), drawn).unwrap();
        } else {
            assert!(
                drawn == svg,
                "docs/pictures/{name} is not what {command} draws: TQKV_DRAW=1 draws it again"
            );
        }
    }
    assert!(charts > 4, "only {charts} charts");
}

#[test]
fn every_page_has_one_picture_and_words_for_it() {
    let pictures = files("docs/pictures", "svg");
    let mut shown = Vec::new();
    for (name, text) in files("docs", "md").into_iter().filter(|(name, _)| !WITHOUT.contains(&&**name)) {
        let images: Vec<_> =
            text.split("\n![").skip(1).map(|image| image.split_once("](pictures/").unwrap()).collect();
        let [(words, rest)] = images[..] else { panic!("docs/{name} has {} pictures", images.len()) };
        assert!(words.split(' ').count() > 5, "docs/{name}: \"{words}\" does not say what the picture shows");
        shown.push(rest.split(')').next().unwrap().to_owned());
    }
    shown.sort();
    let mut names: Vec<_> = pictures.iter().map(|(name, _)| name.clone()).collect();
    names.sort();
    assert_eq!(shown, names, "each page shows its own picture");
}

#[test]
fn pictures_stand_alone_in_light_and_dark() {
    let readme = fs::read_to_string(root().join("docs/picture.svg")).unwrap();
    for (name, svg) in files("docs/pictures", "svg").into_iter().chain([("picture.svg".to_owned(), readme)]) {
        for part in ["role=\"img\"", "prefers-color-scheme:dark", "</title>"] {
            assert!(svg.contains(part), "{name}: {part}");
        }
        let width: usize = between(&svg, "width=\"", "\"").unwrap().parse().unwrap();
        assert!(width <= WIDTH, "{name} is {width} wide");
        let outside = svg.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for word in ["http", "href", "url(", "@import", "@font-face", "<script"] {
            assert!(!outside.contains(word), "{name}: {word}");
        }
        let fonts = svg.split("font-family=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
        assert!(fonts.into_iter().all(|font| ["sans-serif", "monospace"].contains(&font)), "{name}");
    }
}

#[test]
fn a_name_that_no_table_has_is_refused() {
    let refused = |under: &str, name: &str| {
        let page = ["picture", "--page", "docs/quality.md", "--under", under, "--title", "t"];
        error(&root(), &[&page[..], &["--column", name, "-"]].concat(), 2)
    };
    assert!(refused("The largest model", "KL to f16").contains("no heading \"## The largest model\""));
    let line = refused("The shipped model", "KL");
    assert!(line.contains("[\"KL\"]") && line.contains("perplexity; KL to f16"), "{line}");
}
