//! The address of the repository, which every registry shows, in every manifest that has one.

use crate::tidy::published_manifests;
use clap::Args as ClapArgs;
use std::path::Path;
use std::process::ExitCode;

#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Address of the repository on GitHub, such as https://github.com/OWNER/NAME
    address: String,
    /// Only check that the manifests have this address
    #[arg(long)]
    check: bool,
}

/// A file, the start of the line after which the address is told, and these lines.
struct Place {
    file: String,
    anchor: &'static str,
    lines: Vec<String>,
}

impl Place {
    /// The text with the lines, in place of those that give the same keys.
    fn with_lines(&self, text: &str) -> Option<String> {
        let key = |line: &str| line.split(['=', ':', '.']).next().map(|key| key.trim().to_owned());
        let keys: Vec<_> = self.lines.iter().map(|line| key(line)).collect();
        let (mut out, mut is_placed) = (Vec::new(), false);
        for line in text.lines().filter(|line| !keys.contains(&key(line))) {
            out.push(line);
            if !is_placed && line.starts_with(self.anchor) {
                out.extend(self.lines.iter().map(String::as_str));
                is_placed = true;
            }
        }
        is_placed.then(|| out.join("\n") + "\n")
    }
}

/// All places, for `https://github.com/OWNER/NAME`. The documents are a site of the same owner (`.github/workflows/site.yml`).
fn places(address: &str) -> Option<Vec<Place>> {
    let (owner, name) = address.strip_prefix("https://github.com/")?.split_once('/')?;
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if !is_name(owner) || !is_name(name) || name.ends_with(".git") {
        return None;
    }
    let site = format!("https://{}.github.io/{name}/", owner.to_ascii_lowercase());
    let place =
        |file: &str, anchor, lines: &[String]| Place { file: file.to_owned(), anchor, lines: lines.into() };
    let cargo = [format!("repository = \"{address}\""), format!("homepage = \"{site}\"")];
    let mut places = vec![
        place("Cargo.toml", "license = ", &cargo),
        place("core/mcu/Cargo.toml", "license = ", &cargo),
        place(
            "host/python/pyproject.toml",
            "license-files = ",
            &[format!(
                "urls = {{ Repository = \"{address}\", Documentation = \"{site}\", Issues = \"{address}/issues\" }}"
            )],
        ),
        place(
            "host/npm/package.json",
            "  \"license\": ",
            &[
                format!(
                    "  \"repository\": {{ \"type\": \"git\", \"url\": \"git+{address}.git\", \"directory\": \"host/npm\" }},"
                ),
                format!("  \"homepage\": \"{site}\","),
                format!("  \"bugs\": \"{address}/issues\","),
            ],
        ),
        place(".ci/install.sh", "# Where releases are", &[format!("address={address}")]),
    ];
    let of_workspace = ["repository.workspace = true".to_owned(), "homepage.workspace = true".to_owned()];
    places
        .extend(published_manifests().iter().map(|file| place(file, "license.workspace = ", &of_workspace)));
    Some(places)
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."));
    let Some(places) = places(args.address.trim_end_matches('/')) else {
        eprintln!("xtask address: {} is not valid: expected https://github.com/OWNER/NAME", args.address);
        return ExitCode::FAILURE;
    };
    let mut is_done = true;
    for place in places {
        let path = root.join(&place.file);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let Some(wanted) = place.with_lines(&text) else {
            eprintln!("xtask address: {} has no line that begins with '{}'", place.file, place.anchor);
            is_done = false;
            continue;
        };
        if args.check && wanted != text {
            println!("{} does not have the address", place.file);
            is_done = false;
        } else if !args.check && wanted != text {
            match std::fs::write(&path, wanted) {
                Ok(()) => println!("{}", place.file),
                Err(error) => {
                    eprintln!("xtask address: {}: {error}", place.file);
                    is_done = false;
                }
            }
        }
    }
    if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_once_and_replaced() {
        let text = "[package]\nname = \"x\"\nlicense = \"MIT\"\nrepository = \"old\"\n\n[dependencies]\n";
        let place = |url: &str| Place {
            file: String::new(),
            anchor: "license = ",
            lines: vec![format!("repository = \"{url}\""), "homepage = \"h\"".to_owned()],
        };
        let once = place("a").with_lines(text).unwrap();
        assert_eq!(
            once,
            "[package]\nname = \"x\"\nlicense = \"MIT\"\nrepository = \"a\"\nhomepage = \"h\"\n\n[dependencies]\n"
        );
        assert_eq!(place("a").with_lines(&once).unwrap(), once);
        assert_eq!(place("b").with_lines(&once).unwrap(), once.replace("\"a\"", "\"b\""));
        assert!(place("a").with_lines("[package]\n").is_none());
    }

    #[test]
    fn every_place_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let places = places("https://github.com/Someone/a.name").unwrap();
        assert!(places.len() > 12);
        for place in places {
            let text = std::fs::read_to_string(root.join(&place.file)).unwrap();
            let with = place.with_lines(&text).unwrap_or_else(|| panic!("{}", place.file));
            // Keys of other tables are none of ours.
            assert_eq!(
                with.lines().count().saturating_sub(text.lines().count()) % place.lines.len(),
                0,
                "{}",
                place.file
            );
            assert!(with.lines().count() >= text.lines().count(), "{}", place.file);
        }
    }

    #[test]
    fn other_addresses_are_refused() {
        for wrong in [
            "",
            "github.com/a/b",
            "https://github.com/a",
            "https://github.com/a/b/c",
            "https://github.com/a/b.git",
        ] {
            assert!(places(wrong).is_none(), "{wrong}");
        }
    }
}
