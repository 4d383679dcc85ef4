//! Batches for classifiers (reward models, process reward models): where scores are read, and losses of the
//! scores.
//!
//! A row has one position more here than its completion has tokens. The score after a token is stored, like
//! all values of a batch, at the position of the next token; the mask of [`Batch::rows`] marks these
//! positions.

use std::sync::Arc;

use crate::batch::Batch;
use crate::preferences::PreferenceExample;
use crate::reward_model::{PairScoreLoss, PairScores, StepLoss, bradley_terry, process_reward_loss};
use crate::rows::{Rows, RowsError};
use crate::types::{Prompt, TokenId};

/// A completion, with the positions at which a classifier's scores are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadCompletion {
    /// Token ids of the completion.
    pub tokens: Vec<TokenId>,
    /// Number of completion tokens before each score, ascending; 0 is the end of the prompt.
    pub places: Vec<usize>,
}

impl ReadCompletion {
    /// Makes a completion whose score is read after its last token other than `pad`, as by sequence
    /// classifiers of transformers.
    pub fn at_end(tokens: &[TokenId], pad: Option<TokenId>) -> Self {
        let last = tokens.iter().rposition(|token| Some(*token) != pad);
        Self { tokens: tokens.to_vec(), places: vec![last.map_or(0, |last| last + 1)] }
    }

    fn mask(&self) -> Vec<bool> {
        (0..=self.tokens.len()).map(|place| self.places.contains(&place)).collect()
    }
}

/// Loss and metrics of a batch of preference pairs for a reward model.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredPairs {
    /// Bradley-Terry loss of the batch.
    pub loss: f64,
    /// Gradient of the loss by each score, chosen and rejected in turn.
    pub dscores: Vec<f64>,
    /// Mean score of the chosen completions.
    pub chosen: f64,
    /// Mean score of the rejected completions.
    pub rejected: f64,
    /// Fraction of pairs whose chosen completion has the greater score.
    pub accuracy: f64,
}

impl ScoredPairs {
    /// Computes the Bradley-Terry loss of `examples` from `scores`, chosen and rejected in turn.
    ///
    /// # Errors
    /// When the number of scores is not two per example.
    pub fn of(examples: &[Arc<PreferenceExample>], scores: &[f64], centring: f64) -> Result<Self, RowsError> {
        let every_other = |first| scores.iter().copied().skip(first).step_by(2).collect::<Vec<f64>>();
        let (chosen, rejected) = (every_other(0), every_other(1));
        let margins: Vec<f64> = examples.iter().map(|example| example.margin).collect();
        let inputs = PairScores { chosen: &chosen, rejected: &rejected, margins: Some(&margins) };
        let PairScoreLoss { loss, dchosen, drejected, num_right } =
            bradley_terry(&inputs, centring, examples.len())?;
        let num_pairs = examples.len().max(1) as f64;
        Ok(Self {
            loss,
            dscores: dchosen.into_iter().zip(drejected).flat_map(<[f64; 2]>::from).collect(),
            chosen: chosen.iter().sum::<f64>() / num_pairs,
            rejected: rejected.iter().sum::<f64>() / num_pairs,
            accuracy: num_right as f64 / num_pairs,
        })
    }
}

/// Loss and metrics of a batch of completions with labelled steps, for a process reward model.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgedSteps {
    /// Cross-entropy loss of the batch.
    pub loss: f64,
    /// Gradient of the loss by each step's two logits: first those of "wrong", then those of "right".
    pub dlabels: [Vec<f64>; 2],
    /// Fraction of steps classified as their label says.
    pub accuracy: f64,
    /// Fraction of the right steps, and of the wrong steps, that are classified so; `None` without such
    /// steps.
    pub accuracies: [Option<f64>; 2],
}

impl JudgedSteps {
    /// Computes the loss of the steps of `examples` from their logits of "wrong" and of "right".
    ///
    /// # Errors
    /// When the number of logits of either kind is not one per step.
    pub fn of(
        examples: &[Arc<PreferenceExample>],
        [wrong, right]: &[Vec<f64>; 2],
    ) -> Result<Self, RowsError> {
        let truths: Vec<bool> = examples.iter().flat_map(|example| example.labels.iter().copied()).collect();
        let logits: Vec<[f64; 2]> = wrong.iter().zip(right).map(|(wrong, right)| [*wrong, *right]).collect();
        let StepLoss { loss, dlogits, num_right } = process_reward_loss(&logits, &truths, truths.len())?;
        let hits = |kind: bool| {
            let of_kind = logits.iter().zip(&truths).filter(|(_, truth)| **truth == kind);
            let hits: Vec<bool> = of_kind.map(|([wrong, right], truth)| (right > wrong) == *truth).collect();
            let num_hits = hits.iter().filter(|hit| **hit).count() as f64;
            (!hits.is_empty()).then(|| num_hits / hits.len() as f64)
        };
        Ok(Self {
            loss,
            dlabels: [0, 1].map(|label| dlogits.iter().map(|of_step| of_step[label]).collect()),
            accuracy: num_right as f64 / truths.len().max(1) as f64,
            accuracies: [true, false].map(hits),
        })
    }
}

impl Batch {
    /// Makes a batch of the completions of `groups`, whose mask marks the positions to read. The completions
    /// of a group share its prompt, which is computed once.
    pub fn to_read<'a>(groups: impl IntoIterator<Item = (&'a Arc<Prompt>, Vec<ReadCompletion>)>) -> Self {
        let (mut laid_out, mut masks) = (Vec::new(), Vec::new());
        for (prompt, completions) in groups {
            masks.extend(completions.iter().map(ReadCompletion::mask));
            // The token at the additional position has no effect.
            let longer = |completion: ReadCompletion| [completion.tokens, vec![prompt.tokens[0]]].concat();
            laid_out.push((prompt, completions.into_iter().map(longer).collect::<Vec<_>>()));
        }
        let groups = laid_out.iter().map(|(prompt, completions)| (*prompt, completions.as_slice()));
        Self { rows: Rows::from_masks(masks.iter().map(Vec::as_slice)), ..Self::of_completions(groups) }
    }

    /// Makes a batch of every completion of `examples`, read at its end.
    pub fn to_score(examples: &[Arc<PreferenceExample>], pad: Option<TokenId>) -> Self {
        let read = |example: &PreferenceExample| -> Vec<ReadCompletion> {
            example.completions.iter().map(|tokens| ReadCompletion::at_end(tokens, pad)).collect()
        };
        Self::to_read(examples.iter().map(|example| (&example.prompt, read(example))))
    }

    /// Makes a batch of the completions of `examples`, read at the end of each labelled step.
    pub fn to_judge(examples: &[Arc<PreferenceExample>]) -> Self {
        let read = |example: &PreferenceExample| -> Vec<ReadCompletion> {
            let places = || example.step_ends.clone();
            let completions = example.completions.iter();
            completions.map(|tokens| ReadCompletion { tokens: tokens.clone(), places: places() }).collect()
        };
        Self::to_read(examples.iter().map(|example| (&example.prompt, read(example))))
    }

    /// Gathers the values at the positions that are read, from one value per position.
    pub fn read(&self, per_token: &[f64]) -> Vec<f64> {
        self.rows.valid(0..self.rows.num_tokens()).map(|token| per_token[token]).collect()
    }

    /// Scatters `numbers` to the positions that are read; all other positions are 0. The inverse of
    /// [`Self::read`].
    pub fn at_read_positions(&self, numbers: &[f64]) -> Vec<f64> {
        let mut per_token = vec![0.0; self.rows.num_tokens()];
        for (token, number) in self.rows.valid(0..self.rows.num_tokens()).zip(numbers) {
            per_token[token] = *number;
        }
        per_token
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::prompt;

    #[test]
    fn a_completion_is_read_after_its_last_token_that_is_no_padding() {
        let places = |tokens: &[TokenId], pad| ReadCompletion::at_end(tokens, pad).places;
        assert_eq!(places(&[1, 2, 3], None), [3]);
        assert_eq!(places(&[1, 2, 3, 3], Some(3)), [2]);
        assert_eq!(places(&[3], Some(3)), [0], "the end of the prompt");
    }

    #[test]
    fn scores_are_read_one_position_after_their_token() {
        let completion = |tokens: &[TokenId], places: &[usize]| ReadCompletion {
            tokens: tokens.to_vec(),
            places: places.to_vec(),
        };
        let prompt = prompt(&[7, 8]);
        let batch =
            Batch::to_read([(&prompt, vec![completion(&[1, 2, 3], &[1, 3]), completion(&[4], &[0])])]);
        assert_eq!(batch.rows.ranges().collect::<Vec<_>>(), [0..4, 4..6]);
        assert_eq!(batch.read(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), [1.0, 3.0, 4.0]);
        assert_eq!(batch.at_read_positions(&[1.0, 3.0, 4.0]), [0.0, 1.0, 0.0, 3.0, 4.0, 0.0]);
        assert_eq!(batch.sequences[0].predicting_completion(), [1, 2, 3]);
    }

    #[test]
    fn pairs_are_scored_in_turn_and_each_has_its_own_margin() {
        let example = |margin| {
            let completions = vec![vec![1], vec![2]];
            let (labels, step_ends) = (vec![true, false], Vec::new());
            Arc::new(PreferenceExample { prompt: prompt(&[7, 8]), completions, labels, margin, step_ends })
        };
        let got = ScoredPairs::of(&[example(0.0), example(2.0)], &[1.0, -1.0, 0.0, 3.0], 0.0).unwrap();
        let loss = |x: f64| (-x).exp().ln_1p();
        assert!((got.loss - 0.5 * (loss(2.0) + loss(-5.0))).abs() < 1e-12, "{got:?}");
        assert_eq!((got.chosen, got.rejected, got.accuracy), (0.5, 1.0, 0.5));
        let slope = |x: f64| 0.5 / (1.0 + x.exp());
        let expected = [-slope(2.0), slope(2.0), -slope(-5.0), slope(-5.0)];
        assert!(got.dscores.iter().zip(expected).all(|(got, expected)| (got - expected).abs() < 1e-12));
    }
}
