//! The smallest whole job: what it trains is of no interest, only that it trains.

use serde_json::{Value, json};

/// A manifest: three steps of GRPO, one layer, one operator, two prompts of four samples a step. The reward
/// differs between samples of an untrained model already, so that every step has a gradient.
pub fn tiny_job() -> Value {
    json!({
        "apiVersion": "rltraining.dev/v1alpha1",
        "kind": "RLTrainingJob",
        "metadata": { "name": "tiny" },
        "spec": {
            "model": {
                "architecture": {
                    "family": "Llama", "hiddenSize": 32, "intermediateSize": 64, "numLayers": 1, "numHeads": 2,
                    "maxPositionEmbeddings": 32
                },
                "tokenizer": { "characters": "0123456789+=" }
            },
            "data": {
                "task": {
                    "kind": "Arithmetic", "operators": ["+"], "maxOperand": 9, "numTrain": 16, "numHeldOut": 4
                },
                "maxPromptTokens": 8
            },
            "rewards": { "functions": [{ "name": "small", "kind": "Format", "pattern": "[0-4].*" }] },
            "algorithm": { "kind": "GRPO" },
            "rollout": { "samplesPerPrompt": 4, "maxCompletionTokens": 4 },
            "training": {
                "steps": 3, "promptsPerStep": 2, "optimizer": { "learningRate": 0.01 }, "evaluateEvery": 0
            },
            "checkpoint": { "everySteps": 1 },
            "workers": { "device": "Cpu", "threads": 1 }
        }
    })
}
