//! Generated pictures: a grid of cells on a dark background, some of which contain a coloured square. The
//! answer is the number of squares.
//!
//! Every number of squares is equally likely; cells, colours and the background's shade are drawn. Shades are
//! even in held-out pictures and odd in training pictures, so no picture is in both splits. The trainer
//! writes picture files.

use super::arithmetic::{Split, TaskError};
use crate::permutation::{Permutation, splitmix64};

/// Largest number of cells in a row.
const MAX_CELLS: usize = 16;
/// Number of shades of the background, out of 255.
const NUM_SHADES: u64 = 64;
/// Base colours of squares, to which a tint is added.
const COLOURS: [[u8; 3]; 6] =
    [[220, 40, 40], [40, 220, 40], [40, 40, 220], [220, 220, 40], [220, 40, 220], [40, 220, 220]];
/// Number of tints: a colour's channels are brighter by 0 to 31.
const NUM_TINTS: u64 = 32;

/// Form and number of the pictures.
#[derive(Clone, Debug, PartialEq)]
pub struct PicturesOptions {
    /// Number of cells per row and of rows, `1..=16`.
    pub cells: usize,
    /// Height and width of a cell in pixels, at least 2.
    pub cell_pixels: usize,
    /// Largest number of squares, from 1 to the number of cells.
    pub max_count: usize,
    /// Fraction of demonstrations, in `[0, 1)`, that show a wrong number.
    pub demonstration_error_rate: f64,
    /// Number of training problems.
    pub num_train: u64,
    /// Number of held-out problems.
    pub num_held_out: u64,
    /// Seed of every random choice.
    pub seed: u64,
}

/// RGB pixels of a square picture, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Height and width in pixels.
    pub side: usize,
    /// Pixel values, `[side, side, 3]`.
    pub rgb: Vec<u8>,
}

/// A picture with its right and wrong answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PictureProblem {
    /// The picture to count squares in.
    pub picture: Picture,
    /// The number of squares, in decimal.
    pub answer: String,
    /// Answer in a supervised example: right, or for some problems (`demonstration_error_rate`) a wrong
    /// number.
    pub demonstration: String,
    /// A number other than the right one.
    pub wrong_answer: String,
}

/// The counting task.
#[derive(Clone, Debug)]
pub struct CountingPictures {
    options: PicturesOptions,
}

impl CountingPictures {
    /// Makes the task after checking the options.
    ///
    /// # Errors
    /// [`TaskError::Option`] if an option is outside its range.
    pub fn new(options: PicturesOptions) -> Result<Self, TaskError> {
        let refused = |field, value: String, expected| Err(TaskError::Option { field, value, expected });
        let PicturesOptions { cells, cell_pixels, max_count, demonstration_error_rate: rate, .. } = options;
        if !(1..=MAX_CELLS).contains(&cells) {
            return refused("pictures.cells", cells.to_string(), "between 1 and 16");
        }
        if cell_pixels < 2 {
            return refused("pictures.cellPixels", cell_pixels.to_string(), "at least 2");
        }
        if !(1..=cells * cells).contains(&max_count) {
            return refused("pictures.maxCount", max_count.to_string(), "between 1 and cells * cells");
        }
        if !(0.0..1.0).contains(&rate) {
            return refused("demonstrationErrorRate", rate.to_string(), "at least 0 and below 1");
        }
        Ok(Self { options })
    }

    /// Number of problems in a split.
    pub fn num_problems(&self, split: Split) -> u64 {
        match split {
            Split::Train => self.options.num_train,
            Split::HeldOut => self.options.num_held_out,
        }
    }

    /// Returns problem `idx` of a split; `None` past its end.
    pub fn problem(&self, split: Split, idx: u64) -> Option<PictureProblem> {
        if idx >= self.num_problems(split) {
            return None;
        }
        let parity = u64::from(split == Split::Train);
        let seed = splitmix64(splitmix64(self.options.seed, parity), idx);
        let random = |place: u64, below: u64| splitmix64(seed, place) % below;
        let max_count = self.options.max_count as u64;
        let count = 1 + random(0, max_count);
        let shade = (2 * random(1, NUM_SHADES / 2) + parity) as u8;
        // A number other than the right one; it is 2 if `max_count` is 1.
        let other = 1 + (count + random(2, max_count.saturating_sub(1).max(1))) % max_count.max(2);
        let errs = (random(3, 1 << 53) as f64 / (1_u64 << 53) as f64) < self.options.demonstration_error_rate;
        Some(PictureProblem {
            picture: self.draw(seed, count, shade),
            answer: count.to_string(),
            demonstration: if errs { other } else { count }.to_string(),
            wrong_answer: other.to_string(),
        })
    }

    fn draw(&self, seed: u64, count: u64, shade: u8) -> Picture {
        let PicturesOptions { cells, cell_pixels, .. } = self.options;
        let side = cells * cell_pixels;
        let mut picture = Picture { side, rgb: vec![shade; 3 * side * side] };
        let order = Permutation::new((cells * cells) as u64, seed, 0);
        let margin = (cell_pixels / 8).max(usize::from(cell_pixels > 2));
        for (number, cell) in (0..count).filter_map(|number| Some((number, order.get(number)? as usize))) {
            let drawn = splitmix64(!seed, number);
            let tint = |channel: usize| (drawn >> (8 + 8 * channel)) % NUM_TINTS;
            let colour = COLOURS[(drawn % COLOURS.len() as u64) as usize];
            let colour = [0, 1, 2].map(|channel| colour[channel] + tint(channel) as u8);
            let (top, left) = (cell / cells * cell_pixels, cell % cells * cell_pixels);
            for row in top + margin..top + cell_pixels - margin {
                let pixels = row * side + left;
                let pixels = 3 * (pixels + margin)..3 * (pixels + cell_pixels - margin);
                picture.rgb[pixels].as_chunks_mut::<3>().0.fill(colour);
            }
        }
        picture
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn options() -> PicturesOptions {
        PicturesOptions {
            cells: 3,
            cell_pixels: 8,
            max_count: 9,
            demonstration_error_rate: 0.0,
            num_train: 900,
            num_held_out: 200,
            seed: 7,
        }
    }

    fn problems(options: PicturesOptions, split: Split) -> Vec<PictureProblem> {
        let task = CountingPictures::new(options).unwrap();
        (0..task.num_problems(split)).map_while(|idx| task.problem(split, idx)).collect()
    }

    /// Counts the cells whose centre is brighter than every background.
    fn count(picture: &Picture, cells: usize) -> usize {
        let pixels = picture.side / cells;
        let middle = |cell: usize| {
            let (row, column) = (cell / cells * pixels + pixels / 2, cell % cells * pixels + pixels / 2);
            &picture.rgb[3 * (row * picture.side + column)..][..3]
        };
        (0..cells * cells).filter(|cell| middle(*cell).iter().any(|byte| *byte > 100)).count()
    }

    #[test]
    fn every_answer_is_the_number_of_squares_and_every_number_is_asked_for() {
        let problems = problems(options(), Split::Train);
        let mut of_number = [0; 9];
        for problem in &problems {
            let squares = count(&problem.picture, 3);
            assert_eq!(problem.answer, squares.to_string());
            assert_eq!(problem.demonstration, problem.answer);
            assert_ne!(problem.wrong_answer, problem.answer);
            assert!((1..=9).contains(&problem.wrong_answer.parse::<usize>().unwrap()));
            of_number[squares - 1] += 1;
        }
        // Binomial(900, 1/9): mean 100, standard deviation 9.4; five of them on each side.
        assert!(of_number.iter().all(|number| (53..147).contains(number)), "{of_number:?}");
    }

    #[test]
    fn no_picture_is_in_both_splits_and_held_out_ones_do_not_depend_on_the_number_of_others() {
        let pixels = |split| -> BTreeSet<Vec<u8>> {
            problems(options(), split).into_iter().map(|problem| problem.picture.rgb).collect()
        };
        let (train, held_out) = (pixels(Split::Train), pixels(Split::HeldOut));
        assert_eq!((train.len(), held_out.len()), (900, 200));
        assert!(train.is_disjoint(&held_out));
        let few = PicturesOptions { num_train: 1, ..options() };
        assert_eq!(problems(few, Split::HeldOut), problems(options(), Split::HeldOut));
        let other = PicturesOptions { seed: 8, ..options() };
        assert_ne!(problems(other, Split::HeldOut), problems(options(), Split::HeldOut));
    }

    #[test]
    fn the_asked_share_of_demonstrations_shows_another_number() {
        let options = PicturesOptions { demonstration_error_rate: 0.25, ..options() };
        let wrong = problems(options, Split::Train).into_iter().filter(|p| p.demonstration != p.answer);
        // Binomial(900, 0.25): mean 225, standard deviation 13; five of them on each side.
        assert!((160..290).contains(&wrong.count()));
    }

    #[test]
    fn the_smallest_pictures_have_one_square_and_another_number_is_wrong() {
        let options = PicturesOptions { cells: 1, cell_pixels: 2, max_count: 1, ..options() };
        for problem in problems(options, Split::HeldOut) {
            assert_eq!((problem.answer.as_str(), problem.wrong_answer.as_str()), ("1", "2"));
            assert_eq!(count(&problem.picture, 1), 1);
        }
    }

    #[test]
    fn impossible_options_are_refused_by_name() {
        let refused = |options: PicturesOptions| CountingPictures::new(options).unwrap_err().to_string();
        for (options, expected) in [
            (PicturesOptions { cells: 17, ..options() }, "pictures.cells is 17"),
            (PicturesOptions { cell_pixels: 1, ..options() }, "pictures.cellPixels is 1"),
            (PicturesOptions { max_count: 10, ..options() }, "pictures.maxCount is 10"),
            (PicturesOptions { demonstration_error_rate: 1.0, ..options() }, "demonstrationErrorRate is 1"),
        ] {
            let error = refused(options);
            assert!(error.contains(expected), "{error}");
        }
    }
}
