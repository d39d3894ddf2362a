//! Drawings in the colours of the page. Some fixed colours stand for roles; each becomes a variable of the
//! style sheet.

use plotters::prelude::*;
use tqkv_cli::error::CliError;

/// Colour of text and axes.
pub(super) const INK: RGBColor = RGBColor(1, 1, 1);
/// Colour of grid lines.
pub(super) const GRID: RGBColor = RGBColor(2, 2, 2);
/// The style sheet of the page, which has a variable per colour.
pub(super) const STYLE: &str = include_str!("style.css");
/// Number of colours for series; more series repeat them.
const COLOURS: usize = 8;

/// Size of a canvas in pixels, and the height of its letters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) letters: u32,
}

/// Size for screens and paper.
pub(super) const WIDE: Size = Size { width: 860, height: 420, letters: 14 };
/// Size for phones, where letters of a wide drawing would be too small.
pub(super) const NARROW: Size = Size { width: 390, height: 360, letters: 12 };

/// Colour of series `i`.
pub(super) fn colour(i: usize) -> RGBColor {
    RGBColor(1, 0, (i % COLOURS) as u8)
}

/// An area of a drawing.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Draws on an empty canvas. Returns an `svg` element that scales and has no label.
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

/// The error as text, without its borrows.
pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The colours of a drawing, and their names in the style sheet.
fn roles() -> impl Iterator<Item = (RGBColor, String)> {
    let series = (0..COLOURS).map(|i| (colour(i), format!("c{i}")));
    [(INK, "ink".to_owned()), (GRID, "grid".to_owned())].into_iter().chain(series)
}

/// Puts the colours of the style sheet for light paper in place of its variables.
pub(super) fn with_colours(svg: &str) -> String {
    let names = roles().map(|(_, name)| name).chain(["card".to_owned()]);
    names.fold(svg.to_owned(), |svg, name| {
        let value = STYLE.split_once(&format!("--{name}: ")).and_then(|(_, rest)| rest.split(';').next());
        svg.replace(&format!("var(--{name})"), value.unwrap_or("black"))
    })
}

fn themed(svg: &str) -> String {
    // The page's column sets the size.
    let start = svg.find("viewBox").unwrap_or(0);
    let mut svg = format!("<svg aria-hidden=\"true\" {}", &svg[start..]);
    for (RGBColor(r, g, b), role) in roles() {
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
