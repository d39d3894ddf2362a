//! Drawings in the colours of the page: what is drawn in a colour that stands for a role becomes a variable
//! of the style sheet.

use plotters::prelude::*;
use tqkv_cli::error::CliError;

/// Text and axes.
pub(super) const INK: RGBColor = RGBColor(1, 1, 1);
/// Lines that help to read.
pub(super) const GRID: RGBColor = RGBColor(2, 2, 2);
/// Colours of series; more of them begin anew.
const COLOURS: usize = 8;

/// A canvas: pixels, and the height of letters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) letters: u32,
}

/// For screens and paper.
pub(super) const WIDE: Size = Size { width: 860, height: 420, letters: 14 };
/// For phones, where a wide drawing would have letters too small to read.
pub(super) const NARROW: Size = Size { width: 390, height: 360, letters: 12 };

/// The colour that stands for series `i`.
pub(super) fn colour(i: usize) -> RGBColor {
    RGBColor(1, 0, (i % COLOURS) as u8)
}

/// An area of a drawing.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Draws on an empty canvas; the result is an `svg` element that scales, without a name of its own.
pub(super) fn draw(
    size: Size,
    paint: &dyn Fn(&Area<'_>, Size) -> Result<(), String>,
) -> Result<String, CliError> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (size.width, size.height)).into_drawing_area();
        let painted = paint(&area, size).and_then(|()| area.present().map_err(text));
        painted.map_err(|error| CliError::failure(format_args!("a plot: {error}")))?;
    }
    Ok(themed(&svg))
}

/// An error without what it borrows.
pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn themed(svg: &str) -> String {
    // Its size is that of the page's column.
    let start = svg.find("viewBox").unwrap_or(0);
    let mut svg = format!("<svg aria-hidden=\"true\" {}", &svg[start..]);
    for (colour, role) in [(INK, "ink".to_owned()), (GRID, "grid".to_owned())]
        .into_iter()
        .chain((0..COLOURS).map(|i| (colour(i), format!("c{i}"))))
    {
        let RGBColor(r, g, b) = colour;
        svg = svg.replace(&format!("\"#{r:02X}{g:02X}{b:02X}\""), &format!("\"var(--{role})\""));
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_become_variables() {
        let svg = draw(NARROW, &|area, _| {
            let line = PathElement::new(vec![(0, 0), (9, 9)], colour(1).stroke_width(2));
            area.draw(&line).map_err(text)?;
            let style = ("sans-serif", 12).into_font().color(&INK);
            area.draw(&Text::new("a < b", (3, 3), style)).map_err(text)
        });
        let svg = svg.unwrap();
        assert!(svg.starts_with("<svg aria-hidden=\"true\" viewBox=\"0 0 390 360\""), "{svg}");
        assert!(svg.contains("var(--c1)") && svg.contains("var(--ink)") && svg.contains("a &lt; b"), "{svg}");
        assert!(!svg.contains("\"#0"), "{svg}");
    }
}
