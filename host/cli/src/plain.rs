//! Text of others on a terminal.

use std::borrow::Cow;

/// A text on one line: what would end the line, steer the terminal or turn the text around is written as an
/// escape. Names of files may have all of it.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::new();
    for c in text.chars() {
        if steers(c) { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_written_as_an_escape() {
        for (text, expected) in [
            ("chat ä é.bin", "chat ä é.bin"),
            ("a\nb\r\t", r"a\nb\r\t"),
            ("\u{1b}[2J\u{7f}\u{9b}", r"\u{1b}[2J\u{7f}\u{9b}"),
            ("\u{202e}\u{2066}\u{200f}\u{feff}\u{2028}", r"\u{202e}\u{2066}\u{200f}\u{feff}\u{2028}"),
            (r"C:\slots", r"C:\slots"),
        ] {
            assert_eq!(plain(text), expected);
        }
    }
}
