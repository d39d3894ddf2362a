//! Heat maps, bars of a vector, and strips of the parts of a whole.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use tqkv_cli::error::CliError;

use super::svg::{Area, GRID, INK, NARROW, Size, WIDE, colour, draw, text};
use super::{Figure, Key};

/// Positive numbers in rows and columns, on a logarithmic scale. A deeper colour is a larger number.
pub(super) struct Heat<'a> {
    pub(super) label: String,
    pub(super) rows: &'a [String],
    pub(super) columns: &'a [String],
    /// The numbers, row by row.
    pub(super) cells: &'a [Vec<f64>],
    pub(super) write: fn(f64) -> String,
}

impl Heat<'_> {
    /// Draws the map in both widths.
    pub(super) fn figure(&self) -> Result<Figure, CliError> {
        let height = |size: Size| size.letters * (3 + 3 * self.rows.len() as u32);
        let sizes = [WIDE, NARROW].map(|size| Size { height: height(size), ..size });
        let [wide, narrow] = sizes.map(|size| draw(size, &|area, size| self.paint(area, size)));
        Ok(Figure { label: self.label.clone(), wide: wide?, narrow: narrow?, legend: Vec::new() })
    }

    fn paint(&self, area: &Area<'_>, size: Size) -> Result<(), String> {
        let all = || self.cells.iter().flatten().copied().filter(|value| *value > 0.0);
        let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
        let letter = size.letters as i32;
        let (left, top) = (6 * letter, 2 * letter);
        let width = (size.width as i32 - left - letter) / self.columns.len().max(1) as i32;
        let centred = ("sans-serif", size.letters - 1).into_font().color(&INK);
        let centred = centred.pos(Pos::new(HPos::Center, VPos::Center));
        let write = |words: &str, at: (i32, i32)| {
            area.draw(&Text::new(words.to_owned(), at, centred.clone())).map_err(text)
        };
        for (column, name) in self.columns.iter().enumerate() {
            write(name, (left + width * column as i32 + width / 2, letter))?;
        }
        for (row, (name, cells)) in self.rows.iter().zip(self.cells).enumerate() {
            let (from, to) = (top + 3 * letter * row as i32, top + 3 * letter * (row as i32 + 1));
            write(name, (left / 2, (from + to) / 2))?;
            for (column, value) in cells.iter().enumerate() {
                let from_left = left + width * column as i32;
                let span = (most / least).ln();
                let depth = if span > 0.0 { (value / least).ln() / span } else { 0.5 };
                let depth = 0.08 + 0.52 * depth.clamp(0.0, 1.0);
                let cell = [(from_left, from), (from_left + width - 2, to - 2)];
                area.draw(&Rectangle::new(cell, colour(0).mix(depth).filled())).map_err(text)?;
                write(&(self.write)(*value), (from_left + width / 2, (from + to) / 2))?;
            }
        }
        Ok(())
    }
}

/// Vectors as bars, one below the other on the same scale.
pub(super) struct Bars<'a> {
    pub(super) label: String,
    /// Title, colour and coordinates of each vector.
    pub(super) vectors: &'a [(String, usize, Vec<f64>)],
}

impl Bars<'_> {
    /// Draws the bars in both widths.
    pub(super) fn figure(&self) -> Result<Figure, CliError> {
        let [wide, narrow] = [WIDE, NARROW].map(|size| draw(size, &|area, size| self.paint(area, size)));
        Ok(Figure { label: self.label.clone(), wide: wide?, narrow: narrow?, legend: Vec::new() })
    }

    fn paint(&self, area: &Area<'_>, size: Size) -> Result<(), String> {
        let all = self.vectors.iter().flat_map(|(_, _, values)| values);
        let most = all.map(|value| value.abs()).fold(f64::MIN_POSITIVE, f64::max);
        let parts = area.split_evenly((self.vectors.len(), 1));
        for (part, (title, number, values)) in parts.iter().zip(self.vectors) {
            let letters = ("sans-serif", size.letters).into_font().color(&INK);
            let mut chart = ChartBuilder::on(part)
                .caption(title, letters.clone())
                .margin(size.letters / 2)
                .y_label_area_size(size.letters * 4)
                .build_cartesian_2d(0.0..values.len() as f64, -1.08 * most..1.08 * most)
                .map_err(text)?;
            chart
                .configure_mesh()
                .disable_x_mesh()
                .y_labels(5)
                .label_style(letters)
                .axis_style(GRID)
                .bold_line_style(GRID.mix(0.6))
                .light_line_style(TRANSPARENT)
                .draw()
                .map_err(text)?;
            let bars = values.iter().enumerate().map(|(i, value)| {
                Rectangle::new([(i as f64 + 0.1, 0.0), (i as f64 + 0.9, *value)], colour(*number).filled())
            });
            chart.draw_series(bars).map_err(text)?;
        }
        Ok(())
    }
}

/// Wholes divided into parts, one strip per whole.
pub(super) struct Strips<'a> {
    pub(super) label: String,
    /// Names and colours of the parts.
    pub(super) parts: &'a [(String, usize)],
    /// Name of each strip, the shares of its parts in order, and the text after it.
    pub(super) strips: &'a [(String, Vec<f64>, String)],
}

impl Strips<'_> {
    /// Draws the strips in both widths.
    pub(super) fn figure(&self) -> Result<Figure, CliError> {
        let height = |size: Size| size.letters * (1 + 3 * self.strips.len() as u32);
        let sizes = [WIDE, NARROW].map(|size| Size { height: height(size), ..size });
        let [wide, narrow] = sizes.map(|size| draw(size, &|area, size| self.paint(area, size)));
        let key =
            |(name, colour): &(String, usize)| Key { colour: *colour, dashed: false, name: name.clone() };
        let legend = self.parts.iter().map(key).collect();
        Ok(Figure { label: self.label.clone(), wide: wide?, narrow: narrow?, legend })
    }

    fn paint(&self, area: &Area<'_>, size: Size) -> Result<(), String> {
        let letter = size.letters as i32;
        let (left, right) = (6 * letter, size.width as i32 - 8 * letter);
        let style = |pos| ("sans-serif", size.letters).into_font().color(&INK).pos(pos);
        for (row, (name, shares, behind)) in self.strips.iter().enumerate() {
            let (top, bottom) =
                (letter / 2 + 3 * letter * row as i32, 3 * letter * (row as i32 + 1) - letter / 2);
            let middle = (top + bottom) / 2;
            let before = style(Pos::new(HPos::Right, VPos::Center));
            area.draw(&Text::new(name.clone(), (left - letter / 2, middle), before)).map_err(text)?;
            let after = style(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new(behind.clone(), (right + letter / 2, middle), after)).map_err(text)?;
            let mut from = left as f64;
            for (share, (_, number)) in shares.iter().zip(self.parts) {
                let to = from + share * (right - left) as f64;
                // Four tokens of thousands still get a visible line.
                let end = if *share > 0.0 { (to as i32).max(from as i32 + 2) } else { to as i32 };
                let cell = [(from as i32, top), (end, bottom)];
                area.draw(&Rectangle::new(cell, colour(*number).filled())).map_err(text)?;
                from = to;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_bars_and_strips_are_drawn() {
        let name = |text: &str| text.to_owned();
        let (rows, columns) = ([name("layer 0"), name("layer 1")], [name("K"), name("V")]);
        let cells = [vec![0.1, 0.2], vec![0.0, 0.05]];
        let write = |value: f64| format!("{value:.3}");
        let heat = Heat { label: name("errors"), rows: &rows, columns: &columns, cells: &cells, write };
        let heat = heat.figure().unwrap();
        assert!(heat.wide.contains("layer 1") && heat.narrow.contains("0.050"), "{}", heat.wide);
        assert!(!heat.wide.contains("NaN"));
        let bars =
            Bars { label: name("x"), vectors: &[(name("before"), 1, vec![1.0, -3.0])] }.figure().unwrap();
        assert!(bars.wide.contains("before") && bars.wide.contains("var(--c1)"));
        let strips = Strips {
            label: name("life"),
            parts: &[(name("hot"), 0), (name("warm"), 1)],
            strips: &[(name("512"), vec![0.25, 0.75], name("3 bits"))],
        };
        let strips = strips.figure().unwrap();
        assert!(strips.narrow.contains("3 bits") && strips.legend.len() == 2);
    }
}
