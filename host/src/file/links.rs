//! Resolves a path to the file that symbolic links lead to.
//!
//! Files are renamed into place, and a rename neither follows links nor refuses unsafe ones. So this code
//! does both. A link of another user is unsafe in a sticky folder where everybody may write, such as `/tmp`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Limit on links that lead to other links, the same as in Linux.
const MOST: usize = 40;

/// The file that `path` leads to. It need not exist if `path` is not a link.
///
/// # Errors
/// `InvalidInput` for a link that leads to no file, or that the system would not follow.
pub(super) fn target(path: &Path) -> io::Result<PathBuf> {
    let invalid = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    let mut target = path.to_path_buf();
    for _ in 0..MOST {
        let Ok(link) = fs::symlink_metadata(&target) else { break };
        if !link.is_symlink() {
            return Ok(target);
        }
        let folder = target.parent().map(Path::to_path_buf).unwrap_or_default();
        if !may_be_followed(&folder, &link)? {
            return invalid(
                "is another user's link in a folder where everybody writes, which is not followed",
            );
        }
        target = folder.join(fs::read_link(&target)?);
    }
    if path.is_symlink() { invalid("is a link that leads to no file") } else { Ok(target) }
}

/// True if the system would follow a link in that folder.
#[cfg(unix)]
fn may_be_followed(folder: &Path, link: &fs::Metadata) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let folder = fs::metadata(folder)?;
    Ok(may_follow((folder.mode(), folder.uid()), link.uid(), rustix::process::geteuid().as_raw()))
}

#[cfg(not(unix))]
fn may_be_followed(_: &Path, _: &fs::Metadata) -> io::Result<bool> {
    Ok(true)
}

/// The rule of Linux (`fs.protected_symlinks`). `folder` is its mode and owner.
#[cfg(unix)]
fn may_follow((mode, owner): (u32, u32), link: u32, own: u32) -> bool {
    const STICKY_FOR_ALL: u32 = 0o1002;
    mode & STICKY_FOR_ALL != STICKY_FOR_ALL || link == own || link == owner
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    #[test]
    fn links_of_others_in_sticky_folders_are_not_followed() {
        for (folder, link, followed) in [
            ((0o40755, 0), 7, true),
            ((0o41777, 0), 7, false),
            ((0o41777, 0), 5, true),
            ((0o41777, 7), 7, true),
            ((0o41775, 0), 7, true),
            ((0o40777, 0), 7, true),
        ] {
            assert_eq!(may_follow(folder, link, 5), followed, "{folder:?} {link}");
        }
    }

    #[test]
    fn a_link_that_another_user_has_laid_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, b"precious").unwrap();
        symlink(&real, &link).unwrap();
        assert_eq!(target(&link).unwrap(), real);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(target(&link).unwrap(), real, "an own one is followed");
        if lchown(&link, Some(12345), None).is_ok() {
            assert!(target(&link).unwrap_err().to_string().contains("another user's link"));
        } else {
            eprintln!("not tested with a real link: only root gives files away");
        }
    }

    #[test]
    fn links_that_lead_nowhere_and_round_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink("b", at("a")).unwrap();
        symlink("a", at("b")).unwrap();
        symlink("gone", at("dangling")).unwrap();
        symlink("dangling", at("chain")).unwrap();
        for name in ["a", "dangling", "chain"] {
            assert!(target(&at(name)).unwrap_err().to_string().contains("leads to no file"), "{name}");
        }
        assert_eq!(target(&at("new")).unwrap(), at("new"));
    }
}
