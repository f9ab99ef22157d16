//! Measuring in rounds: everything that is compared runs once in each, so that what disturbs the machine for a while
//! disturbs all of it.

use std::collections::HashMap;

use anyhow::{Context, Error, Result, anyhow};

use crate::report::{Row, Rows, Section, Target, Unit};

/// Something that is measured once a round and gives one number or several, always as many.
pub type Measure<'a> = Box<dyn FnMut() -> Result<Vec<f64>> + 'a>;

/// What all rounds gave: for each number its values, one a round.
pub type Columns = Vec<Vec<f64>>;

/// A measurement of one number.
pub fn single<'a>(mut measure: impl FnMut() -> Result<f64> + 'a) -> Measure<'a> {
    Box::new(move || measure().map(|value| vec![value]))
}

/// Runs all measurements in each round, beginning with another one each time. One that fails is left out of that
/// round, which is said on standard error, and has NaN there; one that never succeeds, or that fails twice running,
/// is given up and has its reason in place of numbers.
pub fn interleaved<'a>(rounds: usize, measures: impl IntoIterator<Item = Measure<'a>>) -> Vec<Result<Columns>> {
    let mut series: Vec<Series> = measures.into_iter().map(Series::new).collect();
    let count = series.len();
    for round in 0..rounds {
        for i in (0..count).map(|i| (i + round) % count) {
            series[i].measure();
        }
    }
    series.into_iter().map(Series::finish).collect()
}

struct Series<'a> {
    measure: Measure<'a>,
    rounds: Vec<Option<Vec<f64>>>,
    failure: Option<Error>,
    given_up: bool,
}

impl<'a> Series<'a> {
    fn new(measure: Measure<'a>) -> Series<'a> {
        Series { measure, rounds: Vec::new(), failure: None, given_up: false }
    }

    fn measure(&mut self) {
        if self.given_up {
            return;
        }
        match (self.measure)() {
            Ok(values) => {
                if let Some(e) = self.failure.take() {
                    eprintln!("left out of a round: {e:#}");
                }
                self.rounds.push(Some(values));
            }
            Err(e) => {
                self.given_up = self.failure.replace(e).is_some();
                self.rounds.push(None);
            }
        }
    }

    fn finish(self) -> Result<Columns> {
        let numbers = self.rounds.iter().flatten().map(Vec::len).max();
        match (numbers, self.failure) {
            (Some(numbers), failure) if !self.given_up => {
                failure.iter().for_each(|e| eprintln!("left out of a round: {e:#}"));
                let number =
                    |round: &Option<Vec<f64>>, i| round.as_ref().map_or(f64::NAN, |values: &Vec<f64>| values[i]);
                Ok((0..numbers).map(|i| self.rounds.iter().map(|round| number(round, i)).collect()).collect())
            }
            (_, Some(e)) => Err(e),
            (_, None) => Ok(Columns::new()),
        }
    }
}

/// As `interleaved`, for measurements all of which must succeed.
pub fn all<'a>(rounds: usize, measures: impl IntoIterator<Item = Measure<'a>>) -> Result<Vec<Columns>> {
    interleaved(rounds, measures).into_iter().collect()
}

/// As `all`, for measurements of one number.
pub fn together<'a>(rounds: usize, measures: impl IntoIterator<Item = Measure<'a>>) -> Result<Columns> {
    Ok(all(rounds, measures)?.into_iter().map(|mut columns| columns.pop().unwrap_or_default()).collect())
}

/// What each measurement gave, by its name.
pub struct Measured(HashMap<&'static str, Result<Columns, String>>);

impl Measured {
    /// All of these in the same rounds.
    pub fn of<'a>(rounds: usize, named: impl IntoIterator<Item = (&'static str, Measure<'a>)>) -> Measured {
        let (names, measures): (Vec<_>, Vec<_>) = named.into_iter().unzip();
        let results = interleaved(rounds, measures).into_iter();
        Measured(names.into_iter().zip(results.map(|result| result.map_err(|e| format!("{e:#}")))).collect())
    }

    /// One number of a measurement, in each round.
    pub fn column(&self, (name, index): (&str, usize)) -> Result<&[f64]> {
        let columns = self.0.get(name).with_context(|| format!("nothing is called {name}"))?;
        let columns = columns.as_ref().map_err(|e| anyhow!("{name}: {e}"))?;
        columns.get(index).map(Vec::as_slice).with_context(|| format!("{name} printed too few numbers"))
    }

    /// A row of a column.
    pub fn row(
        &self,
        what: impl Into<String>,
        unit: Unit,
        ours: (&str, usize),
        target: impl Into<Option<Target>>,
    ) -> Result<Row> {
        Row::new(what, unit, self.column(ours)?, target)
    }

    /// A row of two columns.
    pub fn pair(
        &self,
        what: impl Into<String>,
        unit: Unit,
        ours: (&str, usize),
        (raw_what, raw, index): (&'static str, &str, usize),
        target: impl Into<Option<Target>>,
    ) -> Result<Row> {
        Row::beside(what, unit, self.column(ours)?, (raw_what, self.column((raw, index))?), target)
    }

    /// `combine` of the numbers of two columns in each round.
    pub fn combined(
        &self,
        one: (&str, usize),
        other: (&str, usize),
        combine: impl Fn(f64, f64) -> f64,
    ) -> Result<Vec<f64>> {
        Ok(self.column(one)?.iter().zip(self.column(other)?).map(|(one, other)| combine(*one, *other)).collect())
    }

    /// A table of those rows that could be measured, and why the others could not.
    pub fn section(&self, title: &'static str, how: &'static str, rows: impl Fn(&Measured) -> Rows) -> Section {
        Section::new(title, how, Ok(rows(self)))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use anyhow::bail;

    use super::*;

    #[test]
    fn each_round_begins_elsewhere_and_a_failure_concerns_its_own_measurement_only() {
        let order = RefCell::new(String::new());
        let good = |name| {
            single({
                let order = &order;
                move || {
                    order.borrow_mut().push(name);
                    Ok(1.0)
                }
            })
        };
        let bad: Measure = Box::new(|| bail!("broken"));
        let results = interleaved(2, vec![good('a'), bad, good('c')]);
        assert_eq!(*order.borrow(), "acca");
        assert_eq!(results[0].as_ref().unwrap(), &[[1.0, 1.0]]);
        assert_eq!(results[1].as_ref().unwrap_err().to_string(), "broken");
    }

    #[test]
    fn one_failure_costs_one_round_and_two_running_cost_the_measurement() {
        let failing = |rounds: &'static [usize]| {
            let mut round = 0;
            single(move || {
                round += 1;
                if rounds.contains(&round) { bail!("round {round}") } else { Ok(1.0) }
            })
        };
        let once = together(4, vec![failing(&[2, 4])]).unwrap();
        assert_eq!(once[0].iter().map(|v| v.is_nan()).collect::<Vec<_>>(), [false, true, false, true]);
        assert_eq!(together(4, vec![failing(&[2, 3])]).unwrap_err().to_string(), "round 3");
        assert_eq!(together(1, vec![failing(&[1])]).unwrap_err().to_string(), "round 1");
    }
}
