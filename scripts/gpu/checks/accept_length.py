"""Accept length over the 60 prompts lands on the table: within 5 % or two standard errors."""

from scripts.gpu.checks import Context, Engines, Verdict

NEEDS = ("tree-many", "wide-many")
# all 60 prompts: setting -> temperature -> tokens per step; ddviz/models/smollm2-135m-dflash/README.md
TABLE = {
    "linear": {0.0: 2.68, 0.6: 2.17, 1.0: 1.50},
    "16-4": {0.0: 3.35, 0.6: 2.79, 1.0: 1.82},
    "64-0": {0.0: 3.93, 0.6: 3.29, 1.0: 2.21},
}
# standard error of the table's figures between prompts; ddviz/models/smollm2-135m-dflash/README.md
ERRORS = {
    "16-4": {0.0: 0.12, 0.6: 0.08, 1.0: 0.05},
    "64-0": {0.0: 0.13, 0.6: 0.09, 1.0: 0.06},
}


def run(engines: Engines, context: Context) -> Verdict:
    verdict = Verdict()
    for name, setting in zip(NEEDS, ERRORS, strict=True):
        for temperature, error in ERRORS[setting].items():
            params = {"temperature": temperature, "max_new_tokens": 192}
            answers = engines[name].generate(context.prompts, params)
            tokens = [len(a.output_ids) - 1 for a in answers]  # the first comes from prefill
            steps = [a.meta["spec_verify_ct"] for a in answers]
            figure, wanted = sum(tokens) / sum(steps), TABLE[setting][temperature]
            allowed = max(0.05 * wanted, 2 * error)
            verdict.figures.append(
                f"{setting}, T = {temperature}: {figure:.3f}, table {wanted}, off {figure / wanted - 1:+.1%}"
            )
            verdict.claim(
                abs(figure - wanted) <= allowed,
                f"{setting}, T = {temperature}: off by more than {allowed:.2f}",
            )
    return verdict
