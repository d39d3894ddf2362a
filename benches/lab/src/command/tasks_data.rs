//! The contexts and questions of `tqkv-lab tasks`. They are always the same, so policies compare.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tqkv_cli::error::CliError;
use tqkv_model::{Model, SpecialTokens};

/// Names of the doors whose numbers are asked for.
const DOORS: [&str; 16] = [
    "red", "blue", "green", "black", "white", "yellow", "brown", "grey", "purple", "pink", "orange",
    "silver", "golden", "violet", "wooden", "broken",
];

/// Facts that a user tells, and their values.
const FACTS: [(&str, &str); 12] = [
    ("name of my dog", "Bruno"),
    ("city where I live", "Lisbon"),
    ("name of my sister", "Clara"),
    ("color of my car", "green"),
    ("name of my teacher", "Mr. Holt"),
    ("capital of my country", "Madrid"),
    ("month of my birthday", "October"),
    ("name of my cat", "Smokey"),
    ("sport that I play", "tennis"),
    ("language that I learn", "Greek"),
    ("name of my street", "Mill Lane"),
    ("day of my exam", "Thursday"),
];

/// Tokens by which other questions may be longer.
const ROOM: usize = 64;

/// Turns between the facts.
const BETWEEN: [(&str, &str); 3] = [
    (
        "How does a bicycle stay upright?",
        "A rider steers slightly into the direction of each fall, and the wheels come back under the weight. \
         A bicycle that rolls does much of this by itself, because of the angle of its fork.",
    ),
    (
        "Can you tell me how bread is made?",
        "You mix flour, water, salt and yeast, and knead the dough until it is smooth. Then it rests until it \
         has doubled in size, is shaped, rests once more, and is baked in a hot oven.",
    ),
    (
        "Why is the sea salty?",
        "Rain dissolves minerals from rocks, and rivers carry them to the sea. Water leaves the sea as vapor, \
         but the salt stays, so it has become more over millions of years.",
    ),
];

/// A context, and questions about it that are asked one by one.
pub(crate) struct Task {
    pub(crate) name: &'static str,
    pub(crate) context: Vec<u32>,
    pub(crate) questions: Vec<Question>,
}

/// A question, and the tokens that answer it.
pub(crate) struct Question {
    pub(crate) asked: Vec<u32>,
    pub(crate) answer: Vec<u32>,
}

/// The tasks for a model, with about `tokens` tokens of `filler` around what must be recalled.
pub(crate) fn tasks(model: &Model, filler: &[u8], tokens: usize) -> Result<Vec<Task>, CliError> {
    Ok(vec![recall(model, filler, tokens)?, arithmetic(model)?, turns(model)?])
}

fn encoded(model: &Model, text: &str) -> Result<Vec<u32>, CliError> {
    let tokens = model.tokenizer().encode(text.as_bytes(), SpecialTokens::Omit);
    tokens.map_err(|error| CliError::model(None, &error))
}

fn question(model: &Model, asked: &str, answer: &str) -> Result<Question, CliError> {
    Ok(Question { asked: encoded(model, asked)?, answer: encoded(model, answer)? })
}

/// Numbers of five digits, hidden at even distances.
fn recall(model: &Model, filler: &[u8], tokens: usize) -> Result<Task, CliError> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let refused = |error| CliError::model(None, &error);
    let numbers = DOORS.map(|_| 10_000 + random.next_u32() % 90_000);
    let lines: Vec<_> = DOORS
        .iter()
        .zip(numbers)
        .map(|(door, n)| format!("\n\nThe number of the {door} door is {n}.\n\n"))
        .collect();
    let lines = lines.iter().map(|line| encoded(model, line)).collect::<Result<Vec<_>, _>>()?;
    let taken: usize = lines.iter().map(Vec::len).sum();
    let filler = model.first_tokens(filler, tokens.saturating_sub(taken)).map_err(refused)?;
    if filler.len() + taken < tokens {
        return Err(CliError::bad_input(format_args!(
            "the text has {} tokens: expected at least {}",
            filler.len(),
            tokens.saturating_sub(taken)
        )));
    }
    let mut context = Vec::with_capacity(tokens);
    for (i, line) in lines.iter().enumerate() {
        let end = |i: usize| i * filler.len() / lines.len();
        context.extend_from_slice(&filler[end(i)..end(i + 1)]);
        context.extend_from_slice(line);
    }
    let ask = |(door, n): (&&str, u32)| {
        question(model, &format!("\n\nThe number of the {door} door is"), &format!(" {n}"))
    };
    Ok(Task {
        name: "recall",
        context,
        questions: DOORS.iter().zip(numbers).map(ask).collect::<Result<_, _>>()?,
    })
}

/// Sums of two numbers below 50, behind sums that are right.
fn arithmetic(model: &Model) -> Result<Task, CliError> {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let mut pair = || [1 + random.next_u32() % 49, 1 + random.next_u32() % 49];
    let shots: String = (0..60).map(|_| pair()).map(|[a, b]| format!("{a} + {b} = {}\n", a + b)).collect();
    let asks: Vec<_> = (0..48).map(|_| pair()).collect();
    let ask = |[a, b]: [u32; 2]| question(model, &format!("{a} + {b} ="), &format!(" {}", a + b));
    let context =
        model.first_tokens(shots.as_bytes(), usize::MAX).map_err(|error| CliError::model(None, &error))?;
    Ok(Task { name: "arithmetic", context, questions: asks.into_iter().map(ask).collect::<Result<_, _>>()? })
}

/// Facts of earlier turns of a conversation, as many as the model's context holds.
fn turns(model: &Model) -> Result<Task, CliError> {
    let (mut context, mut questions) =
        (model.first_tokens(b"", usize::MAX).map_err(|e| CliError::model(None, &e))?, Vec::new());
    for (i, (what, value)) in FACTS.iter().enumerate() {
        let (asked, said) = BETWEEN[i % BETWEEN.len()];
        let told = format!("User: The {what} is {value}.\nAssistant: Thank you, I will remember it.\n");
        let turn = encoded(model, &format!("{told}User: {asked}\nAssistant: {said}\n"))?;
        let yours = what.replace("my ", "your ").replace("I ", "you ");
        let asked = format!("User: What is the {what}?\nAssistant: The {yours} is");
        let question = question(model, &asked, &format!(" {value}"))?;
        let longest = question.asked.len() + question.answer.len() + ROOM;
        if context.len() + turn.len() + longest > model.config().context {
            break;
        }
        context.extend(turn);
        questions.push(question);
    }
    Ok(Task { name: "turns", context, questions })
}
