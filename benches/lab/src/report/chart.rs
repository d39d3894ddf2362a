//! Points and lines over two axes.

use std::ops::Range;

use plotters::chart::ChartContext;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use tqkv_cli::error::CliError;

use super::svg::{Area, GRID, INK, NARROW, Size, WIDE, colour, draw, text};
use super::{Figure, Key};

/// The scale of an axis, and the format of its numbers.
#[derive(Clone, Copy)]
pub(crate) struct Axis {
    pub(crate) name: &'static str,
    /// True if the scale is logarithmic.
    pub(crate) log: bool,
    pub(crate) label: fn(&f64) -> String,
}

/// The look of a series.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Look {
    Line,
    Dashed,
    Points,
    /// A line with its points.
    Both,
}

/// Points of one colour.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) look: Look,
    pub(crate) points: Vec<(f64, f64)>,
    /// Names of points, drawn if there is room.
    pub(crate) labels: Vec<String>,
    /// Number of the colour.
    pub(crate) colour: usize,
}

impl Series {
    /// A series without names at its points.
    pub(crate) fn new(name: &str, look: Look, points: Vec<(f64, f64)>, colour: usize) -> Self {
        Self { name: name.to_owned(), look, points, labels: Vec::new(), colour }
    }
}

/// A drawing between two axes.
type Plane<'a, X, Y> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>;

fn is_finite(point: &(f64, f64)) -> bool {
    point.0.is_finite() && point.1.is_finite()
}

/// A plot.
pub(crate) struct Chart<'a> {
    /// Description of the plot.
    pub(crate) label: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: &'a [Series],
}

impl Chart<'_> {
    /// Draws the plot in both widths.
    pub(crate) fn figure(&self) -> Result<Figure, CliError> {
        let key = |series: &Series| Key {
            colour: series.colour,
            dashed: series.look == Look::Dashed,
            name: series.name.clone(),
        };
        let legend = self.series.iter().map(key).collect();
        let [wide, narrow] = [WIDE, NARROW].map(|size| draw(size, &|area, size| self.paint(area, size)));
        Ok(Figure { label: self.label.clone(), wide: wide?, narrow: narrow?, legend })
    }

    fn paint(&self, area: &Area<'_>, size: Size) -> Result<(), String> {
        let (x, y) = (self.range(|point| point.0, self.x.log), self.range(|point| point.1, self.y.log));
        match (self.x.log, self.y.log) {
            (false, false) => self.fill(area, size, x, y),
            (false, true) => self.fill(area, size, x, y.log_scale()),
            (true, false) => self.fill(area, size, x.log_scale().base(2.0), y),
            (true, true) => self.fill(area, size, x.log_scale().base(2.0), y.log_scale()),
        }
    }

    /// Range from the smallest to the largest number, with a margin.
    fn range(&self, of: fn(&(f64, f64)) -> f64, log: bool) -> Range<f64> {
        let values = self.series.iter().flat_map(|series| &series.points).map(of);
        let values = values.filter(|value| value.is_finite() && (!log || *value > 0.0));
        let (least, most) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        if least > most {
            return 1.0..2.0;
        }
        if log {
            return least / 1.15..most * 1.15;
        }
        let room = 0.06 * (most - least).max(1e-9 * most.abs()).max(f64::MIN_POSITIVE);
        (if least >= 0.0 && least < 0.4 * most { 0.0 } else { least - room })..most + room
    }

    /// Draws axes, series and names.
    fn fill<X, Y>(&self, area: &Area<'_>, size: Size, x: X, y: Y) -> Result<(), String>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let letters = ("sans-serif", size.letters).into_font().color(&INK);
        let mut chart = ChartBuilder::on(area)
            .margin(size.letters / 2)
            .margin_right(size.letters * 2)
            .x_label_area_size(size.letters * 3)
            .y_label_area_size(size.letters * 5)
            .build_cartesian_2d(x, y)
            .map_err(text)?;
        let fewer = if size.width < 500 { 5 } else { 9 };
        chart
            .configure_mesh()
            .x_desc(self.x.name)
            .y_desc(self.y.name)
            .x_labels(fewer)
            .y_labels(7)
            .x_label_formatter(&self.x.label)
            .y_label_formatter(&self.y.label)
            .label_style(letters.clone())
            .axis_desc_style(letters.clone())
            .axis_style(GRID)
            .bold_line_style(GRID.mix(0.6))
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(text)?;
        let taken = self.draw_series(&mut chart)?;
        self.draw_names(area, size, &chart, taken)
    }

    /// Draws lines and points. Returns the places of the points.
    fn draw_series<X, Y>(&self, chart: &mut Plane<'_, X, Y>) -> Result<Vec<Box2>, String>
    where
        X: Ranged<ValueType = f64>,
        Y: Ranged<ValueType = f64>,
    {
        let mut taken = Vec::new();
        for series in self.series {
            let ink = colour(series.colour);
            let points: Vec<_> = series.points.iter().filter(|point| is_finite(point)).copied().collect();
            let stroke = ink.stroke_width(2);
            match series.look {
                Look::Line | Look::Both => {
                    chart.draw_series(LineSeries::new(points.iter().copied(), stroke)).map_err(text)?;
                }
                Look::Dashed => {
                    let line = DashedPathElement::new(points.iter().copied(), 6, 4, stroke);
                    chart.draw_series(std::iter::once(line)).map_err(text)?;
                }
                Look::Points => {}
            }
            if matches!(series.look, Look::Points | Look::Both) {
                // Series differ in shape as well as in colour.
                let marks = points.iter().map(|&point| match series.colour % 3 {
                    0 => Circle::new(point, 4, ink.filled()).into_dyn(),
                    1 => TriangleMarker::new(point, 6, ink.filled()).into_dyn(),
                    _ => Cross::new(point, 4, ink.stroke_width(2)).into_dyn(),
                });
                chart.draw_series(marks).map_err(text)?;
                taken.extend(points.iter().map(|point| Box2::around(chart.backend_coord(point))));
            }
        }
        Ok(taken)
    }

    /// Draws the names of points where nothing is in `taken`.
    fn draw_names<X, Y>(
        &self,
        area: &Area<'_>,
        size: Size,
        chart: &Plane<'_, X, Y>,
        mut taken: Vec<Box2>,
    ) -> Result<(), String>
    where
        X: Ranged<ValueType = f64>,
        Y: Ranged<ValueType = f64>,
    {
        for series in self.series {
            let named = series.points.iter().zip(&series.labels);
            for (point, name) in named.filter(|(point, name)| is_finite(point) && !name.is_empty()) {
                let place = Box2::beside(chart.backend_coord(point), name, size, &taken);
                let Some(place) = place else { continue };
                let style = ("sans-serif", size.letters - 2).into_font().color(&colour(series.colour));
                area.draw(&Text::new(name.clone(), (place.left, place.top), style)).map_err(text)?;
                taken.push(place);
            }
        }
        Ok(())
    }
}

/// A rectangle of pixels.
#[derive(Clone, Copy)]
struct Box2 {
    left: i32,
    top: i32,
    right: i32,
    bottom: i32,
}

impl Box2 {
    fn around((x, y): (i32, i32)) -> Self {
        Self { left: x - 4, top: y - 4, right: x + 4, bottom: y + 4 }
    }

    /// A free place for a name near a point; it overlaps nothing in `taken`.
    fn beside((x, y): (i32, i32), name: &str, size: Size, taken: &[Self]) -> Option<Self> {
        let (height, letters) = (size.letters as i32, name.chars().count() as i32);
        let width = letters * height * 11 / 20;
        let corners = [
            (x + 7, y - height / 2),
            (x - width - 7, y - height / 2),
            (x - width / 2, y - height - 5),
            (x - width / 2, y + 6),
            (x + 6, y - height - 2),
            (x + 6, y + 4),
        ];
        let places = corners.into_iter().map(|(left, top)| Self {
            left,
            top,
            right: left + width,
            bottom: top + height,
        });
        let inside = |place: &Self| {
            place.left > 5 * height
                && place.top > 0
                && place.right < size.width as i32
                && place.bottom < size.height as i32 - 3 * height
        };
        places.filter(inside).find(|place| !taken.iter().any(|other| place.touches(other)))
    }

    fn touches(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(log: bool) -> Figure {
        let series = |look, colour| Series {
            name: format!("series {colour}"),
            look,
            points: vec![(1.0, 0.5), (4.0, 0.01), (4.0, f64::NAN)],
            labels: vec!["first".into(), "second".into(), "nowhere".into()],
            colour,
        };
        let looks = [Look::Line, Look::Dashed, Look::Points, Look::Both];
        let series: Vec<_> = looks.into_iter().enumerate().map(|(i, look)| series(look, i)).collect();
        let axis = Axis { name: "bits", log, label: |x| format!("{x:.1}") };
        Chart { label: "a plot".into(), x: axis, y: axis, series: &series }.figure().unwrap()
    }

    #[test]
    fn both_widths_show_every_series_and_name() {
        for figure in [plot(false), plot(true)] {
            for svg in [&figure.wide, &figure.narrow] {
                for word in ["bits", "first", "second", "var(--c0)", "var(--c3)", "<polyline"] {
                    assert!(svg.contains(word), "{word}: {svg}");
                }
                assert!(!svg.contains("nowhere") && !svg.contains("NaN"), "{svg}");
            }
            assert_eq!(figure.legend.len(), 4);
        }
    }

    #[test]
    fn names_do_not_lie_on_each_other() {
        let mut taken = vec![Box2::around((400, 200))];
        for _ in 0..2 {
            let place = Box2::beside((400, 200), "t2s8", WIDE, &taken).unwrap();
            assert!(!taken.iter().any(|other| place.touches(other)));
            taken.push(place);
        }
        assert!(Box2::beside((0, 0), "t4", NARROW, &[]).is_none_or(|place| place.left > 0));
    }
}
