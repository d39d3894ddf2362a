//! Expressions of keys: whole numbers and names, `+ - * / //` (the last rounds down), `int(..)`, `ceil(..)`.

use crate::error::ModelError;

/// Gives the value of a key.
type Values<'a> = &'a mut dyn FnMut(&str) -> Result<f64, ModelError>;

/// The value of an expression. `None` if it is not one.
pub(super) fn evaluate(text: &str, value: Values<'_>) -> Result<Option<f64>, ModelError> {
    let mut reader = Reader { rest: text, value, deep: 0 };
    let sum = reader.sum()?;
    Ok(sum.filter(|_| reader.rest.is_empty()))
}

/// The parts of a condition that are joined by ` & ` outside of parentheses; none of an empty one.
pub(super) fn parts(condition: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, letter) in condition.char_indices() {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        if letter == '&' && depth == 0 {
            parts.push(condition[start..at].trim());
            start = at + 1;
        }
    }
    parts.push(condition[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// Parentheses may be this deep.
const DEEPEST: usize = 40;

struct Reader<'a> {
    rest: &'a str,
    value: Values<'a>,
    deep: usize,
}

impl Reader<'_> {
    fn take(&mut self, word: &str) -> bool {
        let rest = self.rest.strip_prefix(word);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn sum(&mut self) -> Result<Option<f64>, ModelError> {
        let Some(mut sum) = self.product()? else { return Ok(None) };
        loop {
            let sign = if self.take("+") {
                1.0
            } else if self.take("-") {
                -1.0
            } else {
                return Ok(Some(sum));
            };
            let Some(next) = self.product()? else { return Ok(None) };
            sum += sign * next;
        }
    }

    fn product(&mut self) -> Result<Option<f64>, ModelError> {
        let Some(mut product) = self.one()? else { return Ok(None) };
        loop {
            let operation: fn(f64, f64) -> f64 = if self.take("*") {
                |a, b| a * b
            } else if self.take("//") {
                |a, b| (a / b).floor()
            } else if self.take("/") {
                |a, b| a / b
            } else {
                return Ok(Some(product));
            };
            let Some(next) = self.one()? else { return Ok(None) };
            product = operation(product, next);
        }
    }

    fn one(&mut self) -> Result<Option<f64>, ModelError> {
        let of: fn(f64) -> f64 = if self.take("int(") {
            f64::trunc
        } else if self.take("ceil(") {
            f64::ceil
        } else if self.take("(") {
            |value| value
        } else {
            let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '.';
            let end = self.rest.find(|letter| !is_part(letter)).unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(end);
            self.rest = rest;
            return match word.as_bytes().first() {
                None => Ok(None),
                Some(first) if first.is_ascii_digit() => Ok(word.parse().ok()),
                Some(_) => (self.value)(word).map(Some),
            };
        };
        self.deep += 1;
        if self.deep > DEEPEST {
            return Ok(None);
        }
        let sum = self.sum()?;
        self.deep -= 1;
        Ok(sum.filter(|_| self.take(")")).map(of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<f64> {
        evaluate(text, &mut |key| Ok(if key == "two" { 2.0 } else { 10.0 })).unwrap()
    }

    #[test]
    fn expressions_have_the_value_that_python_gives_them() {
        for (text, expected) in [
            ("3", 3.0),
            ("two+3*ten", 32.0),
            ("(two+3)*ten", 50.0),
            ("ten-two-3", 5.0),
            ("ten//4*2", 4.0),
            ("ten/4*2", 5.0),
            ("int(ten/4)+ceil((ten/4))", 5.0),
            ("2*(two*(ten+1))+1.5", 45.5),
        ] {
            assert_eq!(value(text), Some(expected), "{text}");
        }
        for text in ["", "2+", "(2", "2)", "two three", "*2", "1x", &"(".repeat(1000)] {
            assert_eq!(value(text), None, "{text}");
        }
    }

    #[test]
    fn conditions_are_cut_outside_of_parentheses() {
        assert_eq!(parts("a & !(b & !(c & d)) & layer%e=f"), ["a", "!(b & !(c & d))", "layer%e=f"]);
        assert!(parts("").is_empty());
    }
}
