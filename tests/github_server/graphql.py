"""The few types of GitHub's GraphQL API that say whose a comment is, by graphql-core."""

from __future__ import annotations

import functools
from typing import Any

import graphql

from github_server.routing import Answer
from github_server.state import Comment, Pull, Repository, State, User, stamp

SCHEMA = """
scalar DateTime
scalar URI
scalar BigInt
interface Node { id: ID! }
interface Actor { login: String! }
type User implements Actor { login: String!  databaseId: Int }
type Bot implements Actor { login: String!  databaseId: Int }
type PageInfo { hasNextPage: Boolean!  endCursor: String }
type IssueComment implements Node {
  id: ID!  databaseId: Int  fullDatabaseId: BigInt  body: String!  url: URI!
  viewerDidAuthor: Boolean!  isMinimized: Boolean!  includesCreatedEdit: Boolean!
  author: Actor  createdAt: DateTime!  updatedAt: DateTime!  lastEditedAt: DateTime
}
type IssueCommentConnection { nodes: [IssueComment]  pageInfo: PageInfo!  totalCount: Int! }
type PullRequest implements Node {
  id: ID!  number: Int!
  comments(first: Int, last: Int, after: String, before: String): IssueCommentConnection!
}
type Repository implements Node { id: ID!  pullRequest(number: Int!): PullRequest }
type Query {
  viewer: User!
  node(id: ID!): Node
  nodes(ids: [ID!]!): [Node]!
  repository(owner: String!, name: String!): Repository
}
"""


@functools.cache
def _schema() -> graphql.GraphQLSchema:
    return graphql.build_schema(SCHEMA)


def answer(state: State, actor: User, body: dict[str, Any]) -> Answer:
    """The data of a query, or its errors with status 200, as GitHub does."""
    result = graphql.graphql_sync(
        _schema(), str(body.get("query")), Root(state, actor),
        variable_values=body.get("variables"), type_resolver=_type,
    )  # fmt: skip
    return Answer(
        {"data": result.data}
        | ({"errors": [error.formatted for error in result.errors]} if result.errors else {})
    )


def _type(value: Any, *_: Any) -> str:
    return str(value["__typename"])


class Root:
    """Resolvers of Query."""

    def __init__(self, state: State, actor: User) -> None:
        self.state = state
        self.actor = actor

    def viewer(self, _: Any) -> Any:
        """A workflow's token is no user."""
        if self.actor.kind == "Bot":
            raise graphql.GraphQLError("Resource not accessible by integration")
        return _actor(self.actor)

    def node(self, _: Any, id: str) -> Any:  # noqa: A002
        """An IssueComment."""
        for repository in self.state.repositories.values():
            for comment in repository.comments.values():
                if f"IC_{comment.id}" == id:
                    return self._comment(repository, comment)
        raise graphql.GraphQLError(f"Could not resolve to a node with the global id of '{id}'")

    def nodes(self, info: Any, ids: list[str]) -> Any:
        """At most 100, as GitHub has it."""
        if len(ids) > 100:
            raise graphql.GraphQLError("You may not provide more than 100 node ids")
        return [self.node(info, one) for one in ids]

    def repository(self, _: Any, owner: str, name: str) -> Any:
        """By its full name."""
        found = self.state.repositories.get(f"{owner}/{name}")
        if found is None:
            raise graphql.GraphQLError("Could not resolve to a Repository")

        def pull(_: Any, number: int) -> Any:
            return self._pull(found, found.pulls[number]) if number in found.pulls else None

        return {"id": f"R_{found.id}", "__typename": "Repository", "pullRequest": pull}

    def _pull(self, repository: Repository, pull: Pull) -> Any:
        def comments(
            _: Any, first: int | None = None, last: int | None = None,
            after: str | None = None, before: str | None = None,
        ) -> Any:  # fmt: skip
            if not 1 <= (first or last or 0) <= 100:
                raise graphql.GraphQLError("You must provide a `first` or `last` of 1 to 100")
            assert last is None
            assert before is None
            own = [one for one in repository.comments.values() if one.issue == pull.number]
            start = int(after or 0)
            end = start + (first or 0)
            return {
                "nodes": [self._comment(repository, one) for one in own[start:end]],
                "pageInfo": {"hasNextPage": end < len(own), "endCursor": str(min(end, len(own)))},
                "totalCount": len(own),
            }

        return {
            "id": f"PR_{pull.id}", "__typename": "PullRequest", "number": pull.number,
            "comments": comments,
        }  # fmt: skip

    def _comment(self, repository: Repository, comment: Comment) -> Any:
        edited = comment.updated > comment.created
        return {
            "id": f"IC_{comment.id}", "__typename": "IssueComment", "databaseId": comment.id,
            "fullDatabaseId": str(comment.id), "body": comment.body,
            "url": f"https://github.invalid/{repository.full_name}/pull/{comment.issue}",
            "viewerDidAuthor": comment.author is self.actor, "isMinimized": comment.minimized,
            "includesCreatedEdit": edited, "author": _actor(comment.author),
            "createdAt": stamp(comment.created), "updatedAt": stamp(comment.updated),
            "lastEditedAt": stamp(comment.updated) if edited else None,
        }  # fmt: skip


def _actor(user: User) -> Any:
    return {
        "__typename": user.kind, "databaseId": user.id, "login": user.login.removesuffix("[bot]"),
    }  # fmt: skip
