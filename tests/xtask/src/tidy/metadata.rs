//! What cargo says about the product's workspace and that of microcontrollers.

use super::tree::root;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(root()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The output of cargo in the root.
///
/// # Panics
/// If cargo fails, with its message.
pub(super) fn cargo(arguments: &[&str]) -> String {
    output(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()), arguments)
}

/// A string of an object; empty if it is none.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// `cargo metadata`.
pub(super) struct Metadata(pub(super) Value);

impl Metadata {
    fn of(more: &[&str]) -> Self {
        let text = cargo(&[&["metadata", "--format-version", "1", "--offline"], more].concat());
        Self(serde_json::from_str(&text).expect("cargo writes JSON"))
    }

    /// The packages of both workspaces alone.
    pub(super) fn read() -> Self {
        let (mut product, mut mcu) =
            (Self::of(&["--no-deps"]), Self::of(&["--no-deps", "--manifest-path", "core/mcu/Cargo.toml"]));
        for key in ["packages", "workspace_members"] {
            if let (Value::Array(all), Value::Array(more)) = (&mut product.0[key], mcu.0[key].take()) {
                all.extend(more);
            }
        }
        product
    }

    /// The product's with all dependencies on this machine. Packages for other systems may be missing.
    pub(super) fn resolved() -> Self {
        let version = output("rustc", &["-vV"]);
        let host =
            version.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
        Self::of(&["--filter-platform", host])
    }

    pub(super) fn packages(&self) -> impl Iterator<Item = &Value> {
        self.0["packages"].as_array().into_iter().flatten()
    }

    /// Packages that go to the registry.
    pub(super) fn published(&self) -> Vec<&Value> {
        let members = self.0["workspace_members"].as_array().into_iter().flatten();
        let members: BTreeSet<&str> = members.filter_map(Value::as_str).collect();
        self.packages().filter(|p| members.contains(text(p, "id")) && p["publish"].is_null()).collect()
    }

    /// Names of the crates on which `package` depends, without tests and build scripts, sorted.
    pub(super) fn arrows(&self, package: &str) -> Vec<&str> {
        let found = self.packages().find(|p| p["name"] == package);
        let all = found.and_then(|p| p["dependencies"].as_array()).into_iter().flatten();
        let normal = all.filter(|dependency| dependency["kind"].is_null()).map(|d| text(d, "name"));
        let mut names: Vec<&str> =
            normal.filter(|name| self.packages().any(|p| p["name"] == *name)).collect();
        names.sort_unstable();
        names
    }
}
