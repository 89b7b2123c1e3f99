"""A discriminative router as a run fits it: the classifier, then its balance."""

from dipaco.routing.discriminative import calibrated, fit_classifier


def fit_discriminative(config, features_ND, label_N, num_paths):
    classifier = fit_classifier(config, features_ND, label_N, num_paths)
    return calibrated(classifier, config, features_ND, label_N)
